//! The cost of a doorbell proxy, compared with the minimal loop that does the same work: a round of 128 queues against a bare
//! loop over 128 records and doorbells, the time from a device's store to its doorbell, and the CPU time of an idle proxy
//! against a bare loop of sleeps.

#![allow(missing_docs, reason = "Criterion's macros write a public function")]

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use efa_gda::doorbell::{Alarm, DoorbellMode, DoorbellProxy, End, ProxyOptions, Registration, SendQueue};

const QUEUES: usize = 128;
const DEPTH: u32 = 4096;
/// Bytes from one doorbell to the next on a page.
const STEP: usize = 8;

struct NoAlarm;

impl Alarm for NoAlarm {
    fn raise(&self, _: End) {}
}

/// Queues of one proxy, with adjacent doorbells as on an adapter's page. Registrations are dropped before the memory that
/// they refer to.
struct Queues {
    registrations: Vec<Registration>,
    doorbells: Vec<AtomicU32>,
    _rings: Vec<Box<Ring>>,
}

#[repr(align(4096))]
struct Ring {
    _bytes: [u8; DEPTH as usize * 64],
}

impl Queues {
    fn new(proxy: &DoorbellProxy, mode: DoorbellMode, count: usize) -> Self {
        let doorbells: Vec<_> = (0..count * STEP / 4).map(|_| AtomicU32::new(0)).collect();
        let mut rings = Vec::new();
        let serve = |index: usize| {
            let mut ring = Box::new(Ring { _bytes: [0; DEPTH as usize * 64] });
            let queue = SendQueue {
                buffer: NonNull::from(&mut *ring).cast(),
                doorbell: NonNull::new(doorbells[index * STEP / 4].as_ptr()).expect("not null"),
                entry_size: 64,
                num_entries: DEPTH,
                max_batch: DEPTH,
                store_bytes: 16,
            };
            rings.push(ring);
            // SAFETY: rings and doorbells are dropped after the registrations, and only the proxy stores to them.
            unsafe { proxy.register(mode, queue, 0, Arc::new(NoAlarm)) }.expect("the proxy takes the queue")
        };
        let registrations = (0..count).map(serve).collect();
        Self { registrations, doorbells, _rings: rings }
    }

    fn records(&self) -> Vec<&AtomicU32> {
        self.registrations.iter().map(Registration::record).collect()
    }
}

/// The minimal round: load every record, store every doorbell.
fn bare_round(records: &[&AtomicU32], doorbells: &[&AtomicU32]) {
    for (record, doorbell) in records.iter().zip(doorbells) {
        doorbell.store(record.load(Ordering::Acquire) & 0xffff, Ordering::Release);
    }
}

/// Time of `count` rounds. Before each, every record is incremented, which is not timed.
fn rounds(count: u64, records: &[&AtomicU32], mut round: impl FnMut()) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..count {
        for record in records {
            record.store(record.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
        let begin = Instant::now();
        round();
        spent += begin.elapsed();
    }
    spent
}

fn one_round_of_128_queues(c: &mut Criterion) {
    let proxy = DoorbellProxy::without_thread();
    let queues = Queues::new(&proxy, DoorbellMode::Record, QUEUES);
    let records = queues.records();
    let doorbells: Vec<_> = queues.doorbells.iter().step_by(STEP / 4).collect();
    let mut group = c.benchmark_group("128 doorbells");
    group.throughput(Throughput::Elements(QUEUES as u64));
    group.bench_function("bare loop", |b| {
        b.iter_custom(|count| rounds(count, &records, || bare_round(black_box(&records), &doorbells)));
    });
    // Ring for the records that the bare loop incremented.
    while proxy.round() > 0 {}
    let queues = Queues::new(&proxy, DoorbellMode::Record, QUEUES);
    let records = queues.records();
    group.bench_function("proxy", |b| {
        b.iter_custom(|count| {
            rounds(count, &records, || assert_eq!(black_box(&proxy).round(), QUEUES as u64))
        });
    });
    group.finish();
}

/// Alternates both loops and takes the fastest of many short samples of each, less the time of reading the clock. Other
/// load of the machine slows both alike, and the fastest samples have the least of it.
fn against_the_bare_loop(_: &mut Criterion) {
    const SAMPLES: u32 = 2000;
    const ROUNDS: u64 = 100;
    let (bare_proxy, proxy) = (DoorbellProxy::without_thread(), DoorbellProxy::without_thread());
    let bare = Queues::new(&bare_proxy, DoorbellMode::Record, QUEUES);
    let bare_records = bare.records();
    let bare_doorbells: Vec<_> = bare.doorbells.iter().step_by(STEP / 4).collect();
    let queues = Queues::new(&proxy, DoorbellMode::Record, QUEUES);
    let records = queues.records();
    let mut least = [Duration::MAX; 3];
    for _ in 0..SAMPLES {
        let spent = [
            rounds(ROUNDS, &records[..0], || ()),
            rounds(ROUNDS, &bare_records, || bare_round(black_box(&bare_records), &bare_doorbells)),
            rounds(ROUNDS, &records, || assert_eq!(black_box(&proxy).round(), QUEUES as u64)),
        ];
        least = std::array::from_fn(|index| least[index].min(spent[index]));
        // Before the bare records are ahead of their doorbells by more than a ring.
        if bare_records[0].load(Ordering::Relaxed) > DEPTH / 2 {
            bare_records.iter().for_each(|record| record.store(0, Ordering::Relaxed));
        }
    }
    let [bare, ours] = [1, 2].map(|index| (least[index] - least[0]).as_nanos() as f64 / ROUNDS as f64);
    println!(
        "{QUEUES} doorbells: bare loop {bare:.1} ns, proxy {ours:.1} ns; the proxy's rate is {:.2} of the bare loop's",
        bare / ours
    );
}

fn one_round_of_128_idle_queues(c: &mut Criterion) {
    let proxy = DoorbellProxy::without_thread();
    let queues = Queues::new(&proxy, DoorbellMode::Record, QUEUES);
    let mut group = c.benchmark_group("128 records without news");
    group.throughput(Throughput::Elements(QUEUES as u64));
    group.bench_function("proxy", |b| b.iter(|| black_box(&proxy).round()));
    drop(queues);
    group.finish();
}

fn staged_entries(c: &mut Criterion) {
    let proxy = DoorbellProxy::without_thread();
    let queues = Queues::new(&proxy, DoorbellMode::Staged, 1);
    let (registration, mut posted) = (&queues.registrations[0], 0_u32);
    let mut group = c.benchmark_group("64 staged entries, one doorbell");
    group.throughput(Throughput::Elements(64));
    group.bench_function("proxy", |b| {
        b.iter_custom(|count| {
            let mut spent = Duration::ZERO;
            for _ in 0..count {
                for _ in 0..64 {
                    let at = (posted & (DEPTH - 1)) as usize * 64;
                    let phase = u32::from(posted & DEPTH != 0) << 24;
                    // SAFETY: inside the staging ring, which the registration owns.
                    unsafe { registration.buffer().add(at).cast::<AtomicU32>().as_ref() }
                        .store(phase, Ordering::Relaxed);
                    posted = posted.wrapping_add(1);
                }
                registration.record().store(posted, Ordering::Release);
                let begin = Instant::now();
                assert_eq!(proxy.round(), 64);
                spent += begin.elapsed();
            }
            spent
        });
    });
    group.finish();
}

/// Runs a device's laps on this thread: each increments every record and waits for all doorbells.
fn laps(count: u32, records: &[&AtomicU32], doorbells: &[&AtomicU32]) -> Duration {
    let begin = Instant::now();
    let first = records[0].load(Ordering::Relaxed);
    for lap in 1..=count {
        let next = first.wrapping_add(lap);
        records.iter().for_each(|record| record.store(next, Ordering::Release));
        for doorbell in doorbells {
            while doorbell.load(Ordering::Acquire) != next & 0xffff {
                std::hint::spin_loop();
            }
        }
    }
    begin.elapsed()
}

/// Runs a device on this thread, and alternately a bare loop and a proxy on another; takes the fastest of many short samples
/// of each. Cache lines move between two cores, as from a device.
fn from_thread_to_thread(_: &mut Criterion) {
    const SAMPLES: u32 = 300;
    const LAPS: u32 = 200;
    let mut least = [Duration::MAX; 2];
    let begin = Instant::now();
    for sample in 0..SAMPLES {
        if sample > 10 && begin.elapsed() > Duration::from_secs(10) {
            break;
        }
        let unused = DoorbellProxy::without_thread();
        let queues = Queues::new(&unused, DoorbellMode::Record, QUEUES);
        let (records, stop) = (queues.records(), AtomicU32::new(0));
        let doorbells: Vec<_> = queues.doorbells.iter().step_by(STEP / 4).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    bare_round(black_box(&records), &doorbells);
                }
            });
            laps(10, &records, &doorbells);
            least[0] = least[0].min(laps(LAPS, &records, &doorbells));
            stop.store(1, Ordering::Relaxed);
        });
        let proxy = DoorbellProxy::start(&ProxyOptions::new()).expect("a thread");
        let queues = Queues::new(&proxy, DoorbellMode::Record, QUEUES);
        let records = queues.records();
        let doorbells: Vec<_> = queues.doorbells.iter().step_by(STEP / 4).collect();
        laps(10, &records, &doorbells);
        least[1] = least[1].min(laps(LAPS, &records, &doorbells));
    }
    let [bare, ours] = least.map(|least| f64::from(LAPS) * QUEUES as f64 / least.as_secs_f64() / 1e6);
    println!(
        "a thread that serves {QUEUES} queues of another thread: bare loop {bare:.1} M doorbells/s, proxy \
         {ours:.1} M; {:.2} of the bare loop's rate",
        ours / bare
    );
}

/// Returns the CPU time of this process's threads of this name, in nanoseconds.
fn cpu_time_of(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let time = |task: std::path::PathBuf| {
        let comm = std::fs::read_to_string(task.join("comm")).ok()?;
        let stat = std::fs::read_to_string(task.join("schedstat")).ok()?;
        (comm.trim_end() == name).then(|| stat.split(' ').next()?.parse::<u64>().ok()).flatten()
    };
    tasks.filter_map(|task| time(task.ok()?.path())).sum()
}

/// Compares the CPU time of a proxy with 128 idle queues and of a loop of sleeps over the same period. Criterion cannot
/// measure that, because it measures elapsed time.
fn idle(_: &mut Criterion) {
    const PERIODS: u32 = 3000;
    let period = Duration::from_millis(1);
    let sleeper = std::thread::Builder::new().name("sleeper".into());
    let proxy = DoorbellProxy::start(&ProxyOptions::new().period(period)).expect("a thread");
    let queues = Queues::new(&proxy, DoorbellMode::Record, QUEUES);
    let stop = Arc::new(AtomicU32::new(0));
    let sleeper = sleeper.spawn({
        let stop = stop.clone();
        move || {
            while stop.load(Ordering::Acquire) == 0 {
                std::thread::sleep(period);
            }
        }
    });
    std::thread::sleep(period * 100);
    let before = (cpu_time_of("sleeper"), cpu_time_of("efa-gda-proxy"), proxy.counts().rounds);
    std::thread::sleep(period * PERIODS);
    let after = (cpu_time_of("sleeper"), cpu_time_of("efa-gda-proxy"), proxy.counts().rounds);
    stop.store(1, Ordering::Release);
    sleeper.expect("a thread").join().expect("it sleeps");
    drop(queues);
    let (bare, ours) = (after.0 - before.0, after.1 - before.1);
    println!(
        "idle for {:?}: bare loop of sleeps {:.2} ms of CPU, proxy with {QUEUES} queues {:.2} ms in {} rounds; ratio {:.2}",
        period * PERIODS,
        bare as f64 / 1e6,
        ours as f64 / 1e6,
        after.2 - before.2,
        ours as f64 / bare as f64,
    );
}

criterion_group! {
    name = doorbell;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(3));
    targets = from_thread_to_thread, against_the_bare_loop, one_round_of_128_queues, one_round_of_128_idle_queues, staged_entries, idle
}
criterion_main!(doorbell);
