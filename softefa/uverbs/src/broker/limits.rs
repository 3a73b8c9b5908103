//! What the clients of a broker share, and the one rule by which each gets its part.
//!
//! | resource | total of all clients | refused with |
//! |---|---|---|
//! | open devices | 1,024, or (n - min(64, n / 4)) / 8 if that is less; n is the limit of descriptors (`ulimit -n`) | EMFILE |
//! | objects: handles of every kind | 2^20 | ENOMEM |
//! | bytes of rings and doorbells | a quarter of the machine's memory | ENOMEM |
//!
//! **The rule.** A client, which is a process, may have at most half of what the other clients leave. So one client that
//! takes all it can get leaves half of everything to the others, a second one leaves a quarter, and so on. A client that
//! is refused is named on stderr, once for each resource.
//!
//! Clients' own memory, their memory files and dmabufs included, is theirs alone: the broker neither has descriptors of
//! it nor maps it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::resource::{Resource as Rlimit, getrlimit};
use nix::unistd::{SysconfVar, sysconf};
use softefa::device::say;

use super::process::name;

/// Descriptors that are not shared out, at most: those of the broker itself, and of messages that are being received.
const MAX_RESERVED_DESCRIPTORS: u64 = 64;
/// Descriptors of an open device: the connection, the process, its memory and mappings, two files of rings, and one that
/// exists while it is passed on. One more is left for refused connections.
const DEVICE_DESCRIPTORS: u64 = 8;
/// Each open device has a thread.
const MAX_DEVICES: u64 = 1024;
const MAX_OBJECTS: u64 = 1 << 20;
/// Each refused connection has a thread until it is closed.
const MAX_REFUSALS: u64 = 256;
/// The most refusals that are reported.
const MAX_REPORTS: u32 = 256;

/// The most open devices under a limit of `descriptors`.
fn devices(descriptors: u64) -> u64 {
    let reserved = (descriptors / 4).min(MAX_RESERVED_DESCRIPTORS);
    ((descriptors - reserved) / DEVICE_DESCRIPTORS).min(MAX_DEVICES)
}

/// The most refused connections that are being closed, under a limit of `descriptors`: half of what the devices leave.
fn refusals(descriptors: u64) -> u64 {
    ((descriptors - devices(descriptors) * DEVICE_DESCRIPTORS) / 2).min(MAX_REFUSALS)
}

/// A resource that clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Devices,
    Objects,
    RingBytes,
}

const RESOURCES: usize = 3;

impl Resource {
    fn text(self) -> &'static str {
        match self {
            Self::Devices => "open devices",
            Self::Objects => "objects",
            Self::RingBytes => "bytes of rings",
        }
    }
}

/// The broker's account of what each client has.
#[derive(Debug)]
pub(crate) struct Shares {
    totals: [u64; RESOURCES],
    /// The most refused connections that are being closed.
    pub(crate) refusals: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: [u64; RESOURCES],
    clients: BTreeMap<i32, Client>,
    reports: u32,
}

#[derive(Debug, Default)]
struct Client {
    used: [u64; RESOURCES],
    /// Bit i is set if a refusal of resource i was reported.
    reported: u8,
}

impl State {
    fn remove_if_unused(&mut self, client: i32) {
        if self.clients.get(&client).is_some_and(|client| client.used == [0; RESOURCES]) {
            self.clients.remove(&client);
        }
    }
}

/// A part of a resource that a client has until the value is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    shares: Arc<Shares>,
    client: i32,
    resource: Resource,
    amount: u64,
}

impl Shares {
    /// The shares of this machine and of the limits of this process.
    pub(crate) fn new() -> Arc<Self> {
        let descriptors = getrlimit(Rlimit::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let system = |variable| sysconf(variable).ok().flatten().and_then(|value| u64::try_from(value).ok());
        let memory = system(SysconfVar::_PHYS_PAGES).unwrap_or(1 << 20)
            * system(SysconfVar::PAGE_SIZE).unwrap_or(4096);
        let totals = [devices(descriptors), MAX_OBJECTS, memory / 4];
        Arc::new(Self { totals, refusals: refusals(descriptors), state: Mutex::default() })
    }

    #[cfg(test)]
    pub(super) fn with_totals(totals: [u64; RESOURCES]) -> Arc<Self> {
        Arc::new(Self { totals, refusals: 0, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `amount` of `resource` to `client`. `None`: that is more than its share; the client is named on stderr.
    pub(crate) fn take(self: &Arc<Self>, client: i32, resource: Resource, amount: u64) -> Option<Charge> {
        let kind = resource as usize;
        let mut state = self.lock();
        let all = state.used[kind];
        let entry = state.clients.entry(client).or_default();
        let has = entry.used[kind];
        let share = (self.totals[kind] - (all - has).min(self.totals[kind])) / 2;
        if has.checked_add(amount).is_none_or(|sum| sum > share) {
            let is_new = entry.reported & 1 << kind == 0;
            entry.reported |= 1 << kind;
            state.remove_if_unused(client);
            let is_new = is_new && state.reports < MAX_REPORTS;
            state.reports += u32::from(is_new);
            drop(state);
            if is_new {
                let (process, what) = (name(client), resource.text());
                say(format_args!(
                    "{process} was refused {amount} {what} more: it has {has}, and its share, half of what the other \
                     programs leave, is {share}"
                ));
            }
            return None;
        }
        entry.used[kind] += amount;
        state.used[kind] += amount;
        Some(Charge { shares: self.clone(), client, resource, amount })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let kind = self.resource as usize;
        let mut state = self.shares.lock();
        state.used[kind] -= self.amount;
        if let Some(client) = state.clients.get_mut(&self.client) {
            client.used[kind] -= self.amount;
        }
        state.remove_if_unused(self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_of_descriptors_leaves_devices_to_share() {
        assert_eq!([0, 64, 1024, 1 << 20].map(devices), [0, 6, 120, MAX_DEVICES]);
        assert_eq!([0, 64, 1024, 1 << 20].map(refusals), [0, 8, 32, MAX_REFUSALS]);
    }

    #[test]
    fn a_client_gets_at_most_half_of_what_the_others_leave() {
        let shares = Shares::with_totals([100; RESOURCES]);
        let objects = Resource::Objects;
        assert!(shares.take(1, objects, 51).is_none());
        let first = shares.take(1, objects, 50);
        assert!(first.is_some() && shares.take(1, objects, 1).is_none());
        let second = shares.take(2, objects, 25);
        assert!(second.is_some() && shares.take(2, objects, 1).is_none());
        assert!(shares.take(3, objects, 12).is_some());
        assert!(shares.take(1, Resource::RingBytes, 50).is_some(), "another resource");
        drop((first, second));
        assert!(shares.take(3, objects, 50).is_some(), "what others returned");
        assert!(shares.take(4, objects, u64::MAX).is_none());
        assert!(shares.lock().clients.is_empty(), "a client without anything is forgotten");
    }
}
