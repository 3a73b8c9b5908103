//! Memory of receives whose ids are reused: an id has 16 bits, and a completion may stay unread for more than 2^16
//! receives.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

mod support;

use std::time::Duration;

use efa_gda::fabric::{Error, Query};
use efa_gda::queue::{ReceiveError, Receives, WorkRequest};
use support::side::{Side, pattern};
use support::{assert_no_violations, with_soft_adapter};

const WAIT: Duration = Duration::from_secs(20);

#[test]
fn an_old_completion_does_not_release_the_memory_of_a_later_receive() {
    with_soft_adapter(&[], |adapter| {
        let side = Side::open(&Query::new());
        let (mut sender, mut receiver, peer) = side.pair();
        let [old, new] = [(); 2].map(|()| side.region(&[0; 64]));
        let source = side.region(&pattern(64));
        // Use every id once and read no message, so that the inbox is full of the first messages.
        for _ in 0..32 {
            receiver.post_receives(&Receives::new(&old).count(2048)).unwrap();
            sender.execute(&WorkRequest::send(peer, &source).count(2048)).unwrap();
            for _ in 0..40 {
                receiver.quiet(WAIT).unwrap();
            }
        }
        assert_eq!(receiver.post_receives(&Receives::new(&new)).unwrap().first.get(), 0);
        assert!(matches!(receiver.receive(WAIT), Err(ReceiveError::Lost { .. })));
        let first = receiver.receive(WAIT).unwrap();
        assert_eq!(first.receive.unwrap().get(), 0, "the first receive");
        // The adapter may still write to it.
        let closed = new.close();
        assert!(matches!(closed, Err(Error::Busy { .. })), "{closed:?}");
        assert_no_violations(adapter);
    });
}
