//! An RDMA write from one registered buffer to another, through a queue to itself.
//!
//! On a machine with an EFA adapter: `cargo run -p efa-gda --example put`. Words change how the queue is opened: `gpu` (the
//! first GPU posts), `rdma-core` (without libfabric), `record` and `staged` (a host thread rings).
//!
//! On other machines, on the software adapter, which libfabric finds by the name of the link:
//!
//! ```sh
//! cargo build -p softefa && mkdir -p target/soft && ln -sf "$PWD/target/debug/libsoftefa.so" target/soft/softefa-fi.so
//! FI_PROVIDER_PATH="$PWD/target/soft" cargo run -p efa-gda --example put
//! ```

use std::error::Error;

use efa_gda::doorbell::DoorbellMode;
use efa_gda::memory::Access;
use efa_gda::queue::WorkRequest;
use efa_gda::{Options, Queue, Source};

const BYTES: usize = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut queue = Queue::open(&options()?)?;
    let source = queue.allocate(BYTES, Access::WRITE)?;
    let target = queue.allocate(BYTES, Access::REMOTE_WRITE)?;
    let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    source.write(0, &bytes)?;

    // The peer is this queue. Two processes would exchange addresses and remote regions, and each insert the other's
    // address.
    let peer = queue.insert_peer(&queue.address()?)?;
    let report = queue.execute(&WorkRequest::write(peer, &source, target.remote()))?;

    let mut arrived = vec![0; BYTES];
    target.read(0, &mut arrived)?;
    if arrived != bytes {
        return Err("the write completed, but the target does not hold the source's bytes".into());
    }
    println!("{BYTES} bytes arrived in {} completion(s)", report.completed);
    Ok(())
}

/// The options that the command line names.
fn options() -> Result<Options, String> {
    std::env::args().skip(1).try_fold(Options::new(), |options, word| match &*word {
        #[cfg(feature = "cuda")]
        "gpu" => Ok(options.gpu(0)),
        "rdma-core" => Ok(options.source(Source::RdmaCore)),
        "record" => Ok(options.doorbell(DoorbellMode::Record)),
        "staged" => Ok(options.doorbell(DoorbellMode::Staged)),
        other => Err(format!("unknown word {other:?}; expected gpu, rdma-core, record or staged")),
    })
}
