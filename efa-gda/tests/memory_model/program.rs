//! Programs of a few threads, and the search for an execution that the axioms allow.
//!
//! A thread is a function that calls [`Thread`], or a line of text ([`Program::parse`]). The search runs each thread
//! alone, with every value that a load could return, and joins one run of each thread into a candidate execution.
//!
//! An ordering element (a fence, an acquire, a release, a barrier, a rule of the protocol) has a name, by which a test
//! removes it: a fence or barrier is then left out, an acquire or a release is relaxed.

use super::ptx::{Event, Graph, Kind, Order, Place, Scope};
use std::collections::{BTreeMap, BTreeSet};

/// What a run of a thread reports to the predicate of a test.
pub(crate) type Notes = BTreeMap<&'static str, u64>;
/// A thread. `None`: this run cannot happen, or is not of interest.
pub(crate) type Body = Box<dyn Fn(&mut Thread<'_>) -> Option<()>>;
/// The values that some run of some thread stores in each word.
type Values = BTreeMap<String, BTreeSet<u64>>;

/// One thread while it runs.
pub(crate) struct Thread<'a> {
    template: Event,
    events: Vec<Event>,
    notes: Notes,
    choices: &'a mut Choices,
    values: &'a Values,
    removed: &'a str,
    names: &'a mut BTreeSet<String>,
}

/// Depth-first enumeration of the decisions of a run: each taken one, and of how many.
#[derive(Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, count)) = self.taken.pop() {
            if choice + 1 < count {
                self.taken.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}

/// Ends the run unless `holds`.
pub(crate) fn assume(holds: bool) -> Option<()> {
    holds.then_some(())
}

impl Thread<'_> {
    /// Whether the element `name` is present. An element without a name always is.
    pub(crate) fn has(&mut self, name: &str) -> bool {
        let has_name = !name.is_empty();
        if has_name {
            self.names.insert(name.to_string());
        }
        !has_name || self.removed != name
    }
    /// A number below `count`; the search tries each.
    pub(crate) fn choose(&mut self, count: usize) -> usize {
        let choices = &mut *self.choices;
        if choices.at == choices.taken.len() {
            choices.taken.push((0, count));
        }
        choices.at += 1;
        choices.taken[choices.at - 1].0
    }
    pub(crate) fn note(&mut self, key: &'static str, value: u64) {
        self.notes.insert(key, value);
    }
    fn push(&mut self, kind: Kind, word: &str, value: u64, order: Order, scope: Scope) -> &mut Event {
        self.events.push(Event {
            kind,
            word: word.to_string(),
            value,
            order,
            scope,
            ..self.template.clone()
        });
        self.events.last_mut().expect("the event")
    }
    fn load_as(&mut self, word: &str, order: Order, scope: Scope) -> u64 {
        let values: Vec<u64> =
            self.values.get(word).map_or(vec![], |values| values.iter().copied().collect());
        let value = if values.is_empty() { 0 } else { values[self.choose(values.len())] };
        self.push(Kind::Read, word, value, order, scope).value
    }
    /// A load that without the element `name` is relaxed.
    pub(crate) fn load_acquire(&mut self, name: &str, word: &str, scope: Scope) -> u64 {
        let order = if self.has(name) { Order::Acquire } else { Order::Relaxed };
        self.load_as(word, order, scope)
    }
    pub(crate) fn load_weak(&mut self, word: &str) -> u64 {
        self.load_as(word, Order::Weak, Scope::Gpu)
    }
    pub(crate) fn load_relaxed(&mut self, word: &str) -> u64 {
        self.load_as(word, Order::Relaxed, Scope::Gpu)
    }
    pub(crate) fn store_weak(&mut self, word: &str, value: u64) {
        self.push(Kind::Write, word, value, Order::Weak, Scope::Gpu);
    }
    pub(crate) fn store_relaxed(&mut self, word: &str, value: u64, scope: Scope) {
        self.push(Kind::Write, word, value, Order::Relaxed, scope);
    }
    /// Replaces `old` by `new` in one atomic operation. Ends the run if the word holds another value.
    pub(crate) fn replace(&mut self, word: &str, order: Order, old: u64, new: u64) -> Option<()> {
        assume(self.load_as(word, order, Scope::Gpu) == old)?;
        self.push(Kind::Write, word, new, Order::Relaxed, Scope::Gpu).atomic = true;
        Some(())
    }
    pub(crate) fn fence(&mut self, name: &str, order: Order, scope: Scope) {
        if self.has(name) {
            self.push(Kind::Fence, "", 0, order, scope);
        }
    }
    /// `fence.acq_rel`. Without "`name` as an acquire" it is a release, and the other way round.
    fn fence_acq_rel(&mut self, name: &str, scope: Scope) {
        let parts = [" as an acquire", " as a release"];
        let order = match parts.map(|part| name.is_empty() || self.has(&format!("{name}{part}"))) {
            [true, true] => Order::AcqRel,
            [true, false] => Order::Acquire,
            [false, _] => Order::Release,
        };
        self.fence(name, order, scope);
    }
    /// `fence.sc.gpu`. Without "`name` as sc" it is `fence.acq_rel.gpu`.
    pub(crate) fn fence_sc(&mut self, name: &str) {
        if self.has(name) {
            let order = if self.has(&format!("{name} as sc")) { Order::Sc } else { Order::AcqRel };
            self.push(Kind::Fence, "", 0, order, Scope::Gpu);
        }
    }

    /// Executes one instruction of [`Program::parse`].
    fn execute(&mut self, text: &str) {
        let (text, name) = text.split_once('@').map_or((text, ""), |(text, name)| (text, name.trim()));
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut parts = words[0].split('.');
        let (operation, order) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if order == "sc" {
            return self.fence_sc(name);
        }
        let scope = if parts.next() == Some("sys") { Scope::System } else { Scope::Gpu };
        let is_present = self.has(name);
        let number = |i: usize| words[i].parse::<u64>().expect("a number");
        let order = match order {
            "weak" => Order::Weak,
            "acquire" if is_present => Order::Acquire,
            "release" if is_present => Order::Release,
            _ => Order::Relaxed,
        };
        match operation {
            "ld" => drop(self.push(Kind::Read, words[1], number(2), order, scope)),
            "st" => drop(self.push(Kind::Write, words[1], number(2), order, scope)),
            "cas" => {
                self.push(Kind::Read, words[1], number(2), order, scope);
                self.push(Kind::Write, words[1], number(3), Order::Relaxed, scope).atomic = true;
            }
            "fence" => match words[0].split('.').nth(1) {
                Some("acq_rel") => self.fence_acq_rel(name, scope),
                Some("acquire") => self.fence(name, Order::Acquire, scope),
                Some("release") => self.fence(name, Order::Release, scope),
                _ => panic!("no such fence: {text}"),
            },
            "bar" | "branch" if !is_present => {}
            "bar" => {
                self.push(Kind::Arrive, name, 0, Order::Weak, scope);
                self.push(Kind::Wait, name, 0, Order::Weak, scope);
            }
            "branch" => self.template.depends = self.events.len(),
            _ => panic!("no such instruction: {text}"),
        }
    }
}

/// The events and notes of one run, with the words and values that it loads and stores.
struct Run {
    events: Vec<Event>,
    notes: Notes,
    loads: BTreeSet<(String, u64)>,
    stores: BTreeSet<(String, u64)>,
}

/// The threads of a litmus test, and the initial values that are not 0.
pub(crate) struct Program {
    pub(crate) threads: Vec<(Place, Body)>,
    pub(crate) initial: Vec<(&'static str, u64)>,
}

impl Program {
    /// One thread a line: who, a colon, and instructions with semicolons between them. The adapter and the host are at
    /// `Place::Host`, all others on a GPU.
    ///   ld.ORDER[.sys] WORD VALUE    a load; only executions where it returns VALUE count
    ///   st.ORDER[.sys] WORD VALUE    ORDER: weak, relaxed, acquire, release
    ///   cas.ORDER WORD OLD NEW       an atomic operation that finds OLD and stores NEW
    ///   fence.ORDER[.sys]            ORDER: acquire, release, acq_rel, sc
    ///   bar                          of a group
    ///   branch                       later stores depend on earlier loads
    /// `@ NAME` after an instruction names the element.
    pub(crate) fn parse(text: &str) -> Program {
        let threads = text.lines().filter(|line| !line.trim().is_empty()).map(|line| {
            let (who, instructions) = line.split_once(':').expect("who and a colon");
            let place = match who.trim() {
                "adapter" | "host" => Place::Host,
                "other gpu" => Place::Gpu(1),
                _ => Place::Gpu(0),
            };
            let instructions: Vec<String> = instructions.split(';').map(str::to_string).collect();
            let body: Body = Box::new(move |t| {
                instructions.iter().for_each(|text| t.execute(text));
                Some(())
            });
            (place, body)
        });
        Program { threads: threads.collect(), initial: Vec::new() }
    }

    /// Looks for an execution without the element `removed` whose notes satisfy `outcome`, and which satisfies `shape`.
    /// Adds the names of all elements to `names`.
    pub(crate) fn find(
        &self,
        removed: &str,
        names: &mut BTreeSet<String>,
        outcome: impl Fn(&Notes) -> bool,
        shape: impl Fn(&Graph) -> bool,
    ) -> Option<String> {
        let runs = self.runs(removed, names);
        let mut at = vec![0; runs.len()];
        while runs.iter().all(|runs| !runs.is_empty()) {
            let chosen: Vec<&Run> = at.iter().zip(&runs).map(|(&i, runs)| &runs[i]).collect();
            let notes: Notes =
                chosen.iter().flat_map(|run| run.notes.iter().map(|(key, value)| (*key, *value))).collect();
            let is_stored = |load: &(String, u64)| {
                self.initial_value(&load.0) == load.1 || chosen.iter().any(|run| run.stores.contains(load))
            };
            if outcome(&notes) && chosen.iter().all(|run| run.loads.iter().all(is_stored)) {
                let events: Vec<Event> = chosen.iter().flat_map(|run| run.events.iter().cloned()).collect();
                let mut graph = Graph { source: vec![None; events.len()], events };
                if self.choose_sources(&mut graph, 0, &shape) {
                    return Some(format!("{notes:?} {graph:#?}"));
                }
            }
            let k = (0..at.len()).find(|&k| at[k] + 1 < runs[k].len())?;
            at[k] += 1;
            at[..k].fill(0);
        }
        None
    }

    fn initial_value(&self, word: &str) -> u64 {
        self.initial.iter().find(|(at, _)| *at == word).map_or(0, |(_, value)| *value)
    }

    /// All runs of each thread, with the values that any run of any thread stores.
    fn runs(&self, removed: &str, names: &mut BTreeSet<String>) -> Vec<Vec<Run>> {
        let mut values = Values::new();
        for _ in 0..16 {
            let mut stored = Values::new();
            let number = 0..self.threads.len();
            let runs =
                number.map(|number| self.runs_of(number, removed, names, &values, &mut stored)).collect();
            if stored == values {
                return runs;
            }
            values = stored;
        }
        panic!("a thread stores ever new values");
    }

    /// All runs of one thread whose loads return `values`. Adds what it stores to `stored`.
    fn runs_of(
        &self,
        number: usize,
        removed: &str,
        names: &mut BTreeSet<String>,
        values: &Values,
        stored: &mut Values,
    ) -> Vec<Run> {
        let (place, body) = &self.threads[number];
        let template = Event { thread: number, place: *place, ..Event::default() };
        let (mut choices, mut runs) = (Choices::default(), Vec::new());
        loop {
            let (events, notes, choices_of_run) = (Vec::new(), Notes::new(), &mut choices);
            let template = template.clone();
            let mut thread =
                Thread { template, events, notes, choices: choices_of_run, values, removed, names };
            let is_complete = body(&mut thread).is_some();
            let Thread { events, notes, .. } = thread;
            for e in events.iter().filter(|e| e.accesses()) {
                let of_word = stored.entry(e.word.clone()).or_default();
                of_word.extend([self.initial_value(&e.word)]);
                of_word.extend((e.kind == Kind::Write).then_some(e.value));
            }
            if is_complete {
                let of = |kind| {
                    events.iter().filter(move |e| e.kind == kind).map(|e| (e.word.clone(), e.value)).collect()
                };
                runs.push(Run { loads: of(Kind::Read), stores: of(Kind::Write), events, notes });
            }
            if !choices.advance() {
                return runs;
            }
        }
    }

    /// Tries each write that the reads from event `r` on can take their values from.
    fn choose_sources(&self, graph: &mut Graph, r: usize, shape: &impl Fn(&Graph) -> bool) -> bool {
        let Some(r) = (r..graph.events.len()).find(|&i| graph.events[i].kind == Kind::Read) else {
            return graph.is_consistent() && shape(graph);
        };
        let (word, value) = (graph.events[r].word.clone(), graph.events[r].value);
        let is_source = |e: &Event| e.kind == Kind::Write && e.word == word && e.value == value;
        let writes: Vec<usize> = (0..graph.events.len()).filter(|&w| is_source(&graph.events[w])).collect();
        let initial = (value == self.initial_value(&word)).then_some(None);
        initial.into_iter().chain(writes.into_iter().map(Some)).any(|source| {
            graph.source[r] = source;
            self.choose_sources(graph, r + 1, shape)
        })
    }
}
