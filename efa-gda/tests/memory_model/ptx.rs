//! The axioms of the PTX memory consistency model, on one candidate execution.
//!
//! Implemented from the chapter "Memory Consistency Model" of the PTX ISA (also Lustig, Sahasrabuddhe and Giroux, "A
//! Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS 2019):
//! - Relations: program order, moral strength, observation order (through atomic operations), release and acquire
//!   patterns, synchronisation (patterns, barriers, the order of `fence.sc`), base causality order, causality order,
//!   and coherence order, which is partial: it orders writes that are morally strong or ordered by causality.
//! - Axioms: coherence, fence-SC, atomicity, no thin air (with the dependencies that a thread declares), sequential
//!   consistency per location, causality; base causality order has no cycle.
//!
//! Left out: proxies other than the generic one, the scopes `.cta` and `.cluster`, and accesses that overlap in part.
//!
//! The adapter is outside of that model. Where a test needs the order in which it receives stores, `Graph::arrives`
//! states what is assumed.

use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Scope {
    #[default]
    Gpu,
    System,
}

/// Where a thread runs. The adapter and host threads are at `Host`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Place {
    Gpu(u8),
    #[default]
    Host,
}

/// Of an access: Weak to Release. Of a fence: Acquire to Sc.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Order {
    #[default]
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    Sc,
}

/// `Arrive` and `Wait` are the two halves of a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kind {
    #[default]
    Read,
    Write,
    Fence,
    Arrive,
    Wait,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Event {
    pub(crate) thread: usize,
    pub(crate) place: Place,
    pub(crate) kind: Kind,
    /// The word that is accessed, or the barrier.
    pub(crate) word: String,
    pub(crate) value: u64,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    /// The write half of an atomic operation, whose read is the event before.
    pub(crate) atomic: bool,
    /// How many events of its thread, from the first on, a write depends on.
    pub(crate) depends: usize,
}

impl Event {
    pub(crate) fn accesses(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Write)
    }
    fn is_strong(&self) -> bool {
        self.kind == Kind::Fence || (self.accesses() && self.order != Order::Weak)
    }
    fn reaches(&self, other: &Event) -> bool {
        self.scope == Scope::System || (self.place == other.place && self.place != Place::Host)
    }
    fn is_releasing_fence(&self) -> bool {
        self.kind == Kind::Fence && self.order != Order::Acquire
    }
    fn is_acquiring_fence(&self) -> bool {
        self.kind == Kind::Fence && self.order != Order::Release
    }
    fn is_released_by(&self, barrier: &Event) -> bool {
        self.kind == Kind::Wait && barrier.kind == Kind::Arrive && self.word == barrier.word
    }
}

/// A relation between at most 128 events: bit j of row i says that i comes before j.
#[derive(Clone)]
struct Relation(Vec<u128>);

impl Relation {
    fn of(size: usize, holds: impl Fn(usize, usize) -> bool) -> Relation {
        assert!(size <= 128, "too many events");
        Relation(
            (0..size).map(|i| (0..size).filter(|&j| holds(i, j)).fold(0, |row, j| row | 1 << j)).collect(),
        )
    }
    fn has(&self, i: usize, j: usize) -> bool {
        self.0[i] >> j & 1 != 0
    }
    fn closed(mut self) -> Relation {
        for k in 0..self.0.len() {
            for i in 0..self.0.len() {
                if self.has(i, k) {
                    self.0[i] |= self.0[k];
                }
            }
        }
        self
    }
    fn is_acyclic(&self) -> bool {
        let closed = self.clone().closed();
        (0..closed.0.len()).all(|i| !closed.has(i, i))
    }
}

/// Whether some total order of `items` that respects `before` satisfies `holds`.
fn some_order(
    items: &[usize],
    before: &dyn Fn(usize, usize) -> bool,
    holds: &dyn Fn(&[usize]) -> bool,
    order: &mut Vec<usize>,
) -> bool {
    if order.len() == items.len() {
        return holds(order);
    }
    for &next in items {
        if !order.contains(&next)
            && items.iter().all(|&i| i == next || order.contains(&i) || !before(i, next))
        {
            order.push(next);
            if some_order(items, before, holds, order) {
                return true;
            }
            order.pop();
        }
    }
    false
}

/// A candidate execution: the events of all threads, each thread's in program order and together.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) events: Vec<Event>,
    /// Of each read, the write that it reads from; none: the initial value.
    pub(crate) source: Vec<Option<usize>>,
}

impl Graph {
    fn relation(&self, holds: impl Fn(usize, usize) -> bool) -> Relation {
        Relation::of(self.events.len(), holds)
    }
    fn all(&self, kind: Kind) -> impl Iterator<Item = usize> + '_ {
        (0..self.events.len()).filter(move |&i| self.events[i].kind == kind)
    }
    fn in_program_order(&self, i: usize, j: usize) -> bool {
        i < j && self.events[i].thread == self.events[j].thread
    }
    fn morally_strong(&self, i: usize, j: usize) -> bool {
        let (a, b) = (&self.events[i], &self.events[j]);
        let related =
            a.thread == b.thread || (a.is_strong() && b.is_strong() && a.reaches(b) && b.reaches(a));
        i != j && related && (!a.accesses() || !b.accesses() || a.word == b.word)
    }
    fn reads_from(&self, w: usize, r: usize) -> bool {
        self.events[r].kind == Kind::Read && self.source[r] == Some(w)
    }
    fn depends(&self, i: usize, j: usize) -> bool {
        let (a, b) = (&self.events[i], &self.events[j]);
        let first = self.events.iter().position(|e| e.thread == b.thread).unwrap_or(0);
        a.kind == Kind::Read && b.kind == Kind::Write && self.in_program_order(i, j) && i - first < b.depends
    }

    /// Observation order, between a write and a read.
    fn observation(&self) -> Relation {
        self.relation(|i, j| {
            (self.reads_from(i, j) && self.morally_strong(i, j)) || (self.events[j].atomic && i + 1 == j)
        })
        .closed()
    }
    /// A release pattern that begins with event `i` and ends with the write `w`.
    fn releases(&self, i: usize, w: usize) -> bool {
        let (a, b) = (&self.events[i], &self.events[w]);
        let released = a.kind == Kind::Write && a.order == Order::Release && a.word == b.word;
        b.is_strong()
            && ((i == w && released) || (self.in_program_order(i, w) && (released || a.is_releasing_fence())))
    }
    /// An acquire pattern that begins with the read `r` and ends with event `j`.
    fn acquires(&self, r: usize, j: usize) -> bool {
        let (a, b) = (&self.events[r], &self.events[j]);
        let acquired = b.kind == Kind::Read && b.order == Order::Acquire && a.word == b.word;
        a.is_strong()
            && ((r == j && acquired) || (self.in_program_order(r, j) && (acquired || b.is_acquiring_fence())))
    }
    /// Pairs that synchronise by a release and an acquire pattern, or by a barrier.
    fn synchronises(&self, observation: &Relation) -> Relation {
        let mut pairs = self.relation(|i, j| self.events[j].is_released_by(&self.events[i]));
        for w in self.all(Kind::Write) {
            for r in self.all(Kind::Read).filter(|&r| observation.has(w, r)) {
                for i in (0..self.events.len()).filter(|&i| self.releases(i, w)) {
                    for j in
                        (0..self.events.len()).filter(|&j| self.acquires(r, j) && self.morally_strong(i, j))
                    {
                        pairs.0[i] |= 1 << j;
                    }
                }
            }
        }
        pairs
    }

    /// Whether the axioms allow the execution.
    pub(crate) fn is_consistent(&self) -> bool {
        let observation = self.observation();
        let base = self.synchronises(&observation);
        let base = self.relation(|i, j| self.in_program_order(i, j) || base.has(i, j)).closed();
        let fences: Vec<usize> =
            (0..self.events.len()).filter(|&i| self.events[i].order == Order::Sc).collect();
        // An order of the fences only adds to causality, so what contradicts an axiom without one need not be searched.
        self.relation(|i, j| self.reads_from(i, j) || self.depends(i, j)).is_acyclic()
            && self.holds_with_fence_order(&observation, &base, &[])
            && some_order(
                &fences,
                &|i, j| base.has(i, j),
                &|order| self.holds_with_fence_order(&observation, &base, order),
                &mut Vec::new(),
            )
    }
    fn holds_with_fence_order(&self, observation: &Relation, base: &Relation, fences: &[usize]) -> bool {
        let mut base = base.clone();
        for (k, &i) in fences.iter().enumerate() {
            for &j in fences[k + 1..].iter().filter(|&&j| self.morally_strong(i, j)) {
                base.0[i] |= 1 << j;
            }
        }
        let base = base.closed();
        let mut cause = base.clone();
        for w in self.all(Kind::Write) {
            for r in self.all(Kind::Read).filter(|&r| observation.has(w, r)) {
                cause.0[w] |= base.0[r];
            }
        }
        let words: BTreeSet<&str> =
            self.events.iter().filter(|e| e.accesses()).map(|e| e.word.as_str()).collect();
        (0..self.events.len()).all(|i| !base.has(i, i))
            && words.iter().all(|word| self.is_coherent(word, &cause))
    }

    /// Whether some coherence order of one word satisfies the axioms, given the causality order.
    fn is_coherent(&self, word: &str, cause: &Relation) -> bool {
        let at: Vec<usize> = (0..self.events.len())
            .filter(|&i| self.events[i].accesses() && self.events[i].word == word)
            .collect();
        let writes: Vec<usize> = at.iter().copied().filter(|&i| self.events[i].kind == Kind::Write).collect();
        let reads_ahead = |&r: &usize| self.source[r].is_some_and(|w| cause.has(r, w));
        !at.iter().any(reads_ahead)
            && some_order(
                &writes,
                &|v, w| cause.has(v, w),
                &|order| self.holds_with_coherence(&at, order, cause),
                &mut Vec::new(),
            )
    }
    /// Whether the axioms hold for the accesses `at` to a word if its writes are ordered like `order` where they are
    /// morally strong or ordered by causality.
    fn holds_with_coherence(&self, at: &[usize], order: &[usize], cause: &Relation) -> bool {
        let rank = |i: usize| order.iter().position(|&w| w == at[i]);
        let strong = |i: usize, j: usize| self.morally_strong(at[i], at[j]);
        let coherence = Relation::of(at.len(), |i, j| {
            matches!((rank(i), rank(j)), (Some(a), Some(b)) if a < b)
                && (strong(i, j) || cause.has(at[i], at[j]))
        })
        .closed();
        let source = |r: usize| self.source[at[r]].and_then(|w| at.iter().position(|&i| i == w));
        let from_read = Relation::of(at.len(), |r, w| {
            let is_later = rank(w).is_some() && source(r).is_none_or(|source| coherence.has(source, w));
            self.events[at[r]].kind == Kind::Read && is_later
        });
        let is_allowed = |r: usize, w: usize| {
            let half = r + 1;
            let splits = half < at.len() && at[half] == at[r] + 1 && self.events[at[half]].atomic;
            let splits = splits && strong(r, w) && strong(w, half) && coherence.has(w, half);
            !from_read.has(r, w) || !(cause.has(at[w], at[r]) || splits)
        };
        let communicates = |i, j| source(j) == Some(i) || coherence.has(i, j) || from_read.has(i, j);
        (0..at.len()).all(|r| (0..at.len()).all(|w| is_allowed(r, w)))
            && Relation::of(at.len(), |i, j| {
                self.in_program_order(at[i], at[j]) || (strong(i, j) && communicates(i, j))
            })
            .is_acyclic()
    }

    /// Whether the adapter receives the store of `second`, a word and a value, only after that of `first`. Assumed: a
    /// fence at system scope that releases completes only when all stores before it, of its own thread or acquired by
    /// it, have reached the adapter; and a store leaves the GPU only after the fences, acquires and branches before it.
    pub(crate) fn arrives(&self, first: (&str, u64), second: (&str, u64)) -> bool {
        let find = |(word, value)| {
            let is_it = |&i: &usize| self.events[i].word == word && self.events[i].value == value;
            self.all(Kind::Write).find(is_it).expect("a store")
        };
        let (first, second) = (find(first), find(second));
        let waits = |e: &Event| e.order == Order::Acquire || matches!(e.kind, Kind::Fence | Kind::Wait);
        let is_waited_for =
            |e: &Event| e.order == Order::Release || e.is_releasing_fence() || e.kind == Kind::Arrive;
        let ordered = self.relation(|i, j| {
            let (a, b) = (&self.events[i], &self.events[j]);
            let waited = if a.kind == Kind::Read { b.is_acquiring_fence() } else { is_waited_for(b) };
            (self.in_program_order(i, j) && (waits(a) || waited))
                || self.reads_from(i, j)
                || self.depends(i, j)
                || b.is_released_by(a)
        });
        let ordered = ordered.closed();
        self.all(Kind::Fence)
            .filter(|&f| self.events[f].scope == Scope::System && self.events[f].is_releasing_fence())
            .any(|f| ordered.has(first, f) && ordered.has(f, second))
    }
}
