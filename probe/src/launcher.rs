//! The place of this process in a job, from the environment that its launcher set: mpirun, srun, torchrun, MPICH's
//! mpiexec, a Kubernetes indexed job. Options of the command line come before the environment.

use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of the exchange, unless the launcher or the user names one.
pub(crate) const PORT: u16 = 29_517;

/// The place of a rank in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The rank's number, from 0.
    pub(crate) rank: u32,
    /// The number of ranks.
    pub(crate) of: u32,
    /// The rank's number among those of its machine; 0 if the launcher does not say.
    pub(crate) local: u32,
    /// Where rank 0 listens: HOST:PORT.
    pub(crate) rendezvous: String,
}

/// What the command line says of the place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stated {
    pub(crate) rank: Option<u32>,
    pub(crate) of: Option<u32>,
    pub(crate) rendezvous: Option<String>,
}

/// The variables of one launcher. Of several names, the first that is set counts.
struct Variables {
    launcher: &'static str,
    rank: &'static str,
    /// A variable beside which `rank` says something: one as common as RANK says nothing alone.
    beside: &'static str,
    of: &'static [&'static str],
    /// The rank's number on its machine.
    local: &'static [&'static str],
    /// A list of nodes, the first of which has rank 0.
    nodes: &'static [&'static str],
    /// The number of ranks on the machine: rank 0 is on this one if they are all.
    here: Option<&'static str>,
}

/// The launchers. An inner one comes before one that may have started it: torchrun and mpirun run inside Slurm's
/// allocations, whose batch script has a SLURM_PROCID too. All know MASTER_ADDR and MASTER_PORT.
const LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: "torchrun",
        rank: "RANK",
        beside: "WORLD_SIZE",
        of: &["WORLD_SIZE"],
        local: &["LOCAL_RANK"],
        nodes: &[],
        here: None,
    },
    Variables {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        beside: "OMPI_COMM_WORLD_RANK",
        of: &["OMPI_COMM_WORLD_SIZE"],
        local: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        nodes: SLURM_NODES,
        here: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Variables {
        launcher: "MPICH",
        rank: "PMI_RANK",
        beside: "PMI_RANK",
        of: &["PMI_SIZE"],
        // Under srun --mpi=pmi2, MPICH's variables lack the number on the machine, which Slurm's have.
        local: &["MPI_LOCALRANKID", "SLURM_LOCALID"],
        nodes: SLURM_NODES,
        here: Some("MPI_LOCALNRANKS"),
    },
    Variables {
        launcher: "Slurm",
        rank: "SLURM_PROCID",
        beside: "SLURM_PROCID",
        of: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local: &["SLURM_LOCALID"],
        nodes: SLURM_NODES,
        here: None,
    },
    // Kubernetes does not state the number of completions.
    Variables {
        launcher: "Kubernetes",
        rank: "JOB_COMPLETION_INDEX",
        beside: "JOB_COMPLETION_INDEX",
        of: &["WORLD_SIZE"],
        local: &["LOCAL_RANK"],
        nodes: &[],
        here: None,
    },
];

/// Slurm's lists of nodes; mpirun starts ranks on them too.
const SLURM_NODES: &[&str] = &["SLURM_STEP_NODELIST", "SLURM_NODELIST"];

/// The place of this process, from options and the variables that `get` returns.
pub(crate) fn place(stated: &Stated, get: impl Fn(&str) -> Option<String>) -> Result<Place, String> {
    let set = |name: &str| get(name).filter(|value| !value.is_empty());
    let first = |names: &[&'static str]| names.iter().find_map(|name| Some((*name, set(name)?)));
    let found = LAUNCHERS.iter().find(|one| set(one.rank).is_some() && set(one.beside).is_some());
    let Some(rank) = stated.rank.map(Ok).or_else(|| Some(number(found?.rank, &set(found?.rank)?))) else {
        return Err(
            "this process has no rank: start all ranks here with --spawn N, start them with mpirun, srun, \
                    torchrun or a Kubernetes indexed job, or state --rank, --ranks and --rendezvous"
                .to_owned(),
        );
    };
    let rank = rank?;
    let of = stated.of.map(Ok).or_else(|| {
        let (name, value) = first(found?.of)?;
        Some(number(name, &value))
    });
    let of: u32 = of.ok_or_else(|| {
        let launcher = found.map_or("the environment", |one| one.launcher);
        format!("{launcher} does not state the number of ranks; add --ranks N, or set WORLD_SIZE")
    })??;
    if rank >= of || of > crate::exchange::MOST_RANKS {
        let most = crate::exchange::MOST_RANKS;
        return Err(format!("rank {rank} of {of}: ranks count from 0, and at most {most} take part"));
    }
    let local = match found.and_then(|one| first(one.local)) {
        Some((name, value)) if stated.rank.is_none() => number(name, &value)?,
        _ => 0,
    };
    let rendezvous = with_port(&rendezvous(stated, found, &set)?, port(stated, &set)?);
    Ok(Place { rank, of, local, rendezvous })
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("the variable {name} is {value:?}, not a number in range"))
}

/// Accepts HOST and HOST:PORT. The host is a name or an address; an IPv6 address with a port has brackets.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, rest)))
            if host.parse::<Ipv6Addr>().is_ok() && (rest.is_empty() || rest.starts_with(':')) =>
        {
            (host, rest.strip_prefix(':'))
        }
        Some(_) => return Err("expected [IPV6]:PORT".to_owned()),
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(
            "expected the name or the address of a host, and :PORT if it is another than 29517".to_owned()
        );
    }
    match port {
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        Some(port) => Err(format!("the port {port:?} is not a number from 1 to 65535")),
        None => Ok(text.to_owned()),
    }
}

/// `host` with `port`, unless it names one. An IPv6 address with a port has brackets.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    let bare_v6 = host.matches(':').count() > 1 && !host.starts_with('[');
    match host.rsplit_once(':') {
        Some((_, text)) if !bare_v6 && text.parse::<u16>().is_ok() => host.to_owned(),
        _ if bare_v6 => format!("[{host}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// The host of rank 0.
fn rendezvous(
    stated: &Stated,
    launcher: Option<&Variables>,
    set: &impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    if let Some(host) = &stated.rendezvous {
        return Ok(host.clone());
    }
    let valid = |name: &str, host: String| {
        host_and_port(&host).map_err(|why| format!("the host {host:?} of the variable {name}: {why}"))
    };
    if let Some(host) = set("MASTER_ADDR") {
        return valid("MASTER_ADDR", host);
    }
    if let Some(one) = launcher.filter(|_| stated.rank.is_none()) {
        let nodes = one.nodes.iter().find_map(|name| Some((*name, first_node(&set(name)?)?)));
        // A list without Slurm's own rank is of an allocation that did not start this process.
        if let Some((name, node)) = nodes.filter(|_| set("SLURM_PROCID").is_some()) {
            return valid(name, node);
        }
        let all = |here: &str| set(here).is_some() && one.of.iter().any(|of| set(of) == set(here));
        if one.here.is_some_and(all) {
            return Ok("127.0.0.1".to_owned());
        }
    }
    Err("the launcher does not state the host of rank 0; set MASTER_ADDR for all ranks (mpirun -x MASTER_ADDR=HOST; \
         Kubernetes: the name of pod 0, JOB-0.SERVICE), or add --rendezvous HOST[:PORT]"
        .to_owned())
}

/// The first node of Slurm's list: `a1,b2`, `node[001-004,7]`, `rack[1-2]node[3,5]`.
fn first_node(list: &str) -> Option<String> {
    let (mut name, mut rest) = (String::new(), list);
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        name.push_str(&rest[..end]);
        rest = match rest[end..].strip_prefix('[') {
            None => return (!name.is_empty()).then_some(name),
            Some(ranges) => {
                let (ranges, after) = ranges.split_once(']')?;
                name.push_str(ranges.split(['-', ',']).next()?);
                after
            }
        };
    }
}

/// The port of the exchange.
fn port(stated: &Stated, set: &impl Fn(&str) -> Option<String>) -> Result<u16, String> {
    if stated.rendezvous.is_some() {
        return Ok(PORT);
    }
    if let Some(port) = set("MASTER_PORT") {
        let port = match number("MASTER_PORT", &port)? {
            0_u16 => return Err("the variable MASTER_PORT is \"0\", not a port from 1 to 65535".to_owned()),
            port => port,
        };
        // torchrun's agent listens at the port itself.
        let taken = set("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        return Ok(if taken { port.checked_add(1).unwrap_or(PORT) } else { port });
    }
    // Jobs that share a node must not share a port.
    match set("SLURM_JOB_ID").and_then(|job| job.parse::<u64>().ok()) {
        Some(job) => Ok(20_000 + (job % 10_000) as u16),
        None => Ok(PORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stated: &Stated, variables: &[(&str, &str)]) -> Result<Place, String> {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        place(stated, find)
    }

    fn at(variables: &[(&str, &str)]) -> Place {
        of(&Stated::default(), variables).unwrap()
    }

    fn expected(rank: u32, of: u32, local: u32, rendezvous: &str) -> Place {
        Place { rank, of, local, rendezvous: rendezvous.to_owned() }
    }

    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NODELIST", "p5-[007-009],p6"),
        ("SLURM_JOB_ID", "123456"),
    ];
    const TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];
    const MPIRUN: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];

    #[test]
    fn slurm_names_the_first_node_and_the_job_gives_the_port() {
        assert_eq!(at(&SLURM), expected(3, 4, 1, "p5-007:23456"));
    }

    #[test]
    fn torchrun_names_the_rendezvous_and_its_agent_keeps_its_port() {
        assert_eq!(at(&TORCHRUN), expected(5, 8, 1, "10.0.0.1:29500"));
        let agent = [&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(at(&agent), expected(5, 8, 1, "10.0.0.1:29501"));
    }

    #[test]
    fn mpirun_on_one_machine_needs_no_address_and_on_several_one_is_asked_for() {
        assert_eq!(at(&MPIRUN), expected(1, 2, 1, "127.0.0.1:29517"));
        let several = [&MPIRUN[..3], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
        assert!(of(&Stated::default(), &several).unwrap_err().contains("MASTER_ADDR"));
        let named = [&several[..], &[("MASTER_ADDR", "fd00::1")]].concat();
        assert_eq!(at(&named).rendezvous, "[fd00::1]:29517");
    }

    #[test]
    fn mpirun_inside_an_allocation_of_slurm_is_the_launcher() {
        let both = [&SLURM[..], &MPIRUN[..]].concat();
        assert_eq!((at(&both).rank, at(&both).of), (1, 2));
    }

    #[test]
    fn ranks_that_srun_starts_through_pmi2_have_slurms_number_on_their_machine() {
        let pmi2 = [&SLURM[..], &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MASTER_ADDR", "h")]].concat();
        assert_eq!((at(&pmi2).rank, at(&pmi2).local), (3, 1));
        let mpich = [&pmi2[..], &[("MPI_LOCALRANKID", "2")]].concat();
        assert_eq!(at(&mpich).local, 2);
    }

    #[test]
    fn a_kubernetes_job_states_its_size_and_the_name_of_pod_0() {
        let job = [("JOB_COMPLETION_INDEX", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "ring-0.ring")];
        assert_eq!(at(&job), expected(2, 4, 0, "ring-0.ring:29517"));
        let error = of(&Stated::default(), &[("JOB_COMPLETION_INDEX", "2")]).unwrap_err();
        assert!(error.contains("Kubernetes does not state the number of ranks"), "{error}");
    }

    #[test]
    fn options_come_before_the_environment() {
        let stated = Stated { rank: Some(0), of: Some(2), rendezvous: Some("h:1".to_owned()) };
        assert_eq!(of(&stated, &TORCHRUN).unwrap(), expected(0, 2, 0, "h:1"));
    }

    #[test]
    fn without_a_launcher_the_ways_to_start_ranks_are_named() {
        let error = of(&Stated::default(), &[("RANK", "1")]).unwrap_err();
        assert!(error.contains("--spawn N") && error.contains("mpirun"), "{error}");
    }

    #[test]
    fn numbers_that_are_none_are_named() {
        let error = of(&Stated::default(), &[("RANK", "one"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert_eq!(error, "the variable RANK is \"one\", not a number in range");
        let no_port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "0")];
        let error = of(&Stated::default(), &no_port).unwrap_err();
        assert_eq!(error, "the variable MASTER_PORT is \"0\", not a port from 1 to 65535");
        let no_port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h:0")];
        let error = of(&Stated::default(), &no_port).unwrap_err();
        assert!(error.contains("MASTER_ADDR") && error.contains("1 to 65535"), "{error}");
        let beyond = [("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")];
        assert!(of(&Stated::default(), &beyond).unwrap_err().contains("count from 0"));
    }

    #[test]
    fn hosts_are_accepted_with_and_without_a_port() {
        for good in ["h", "h:1", "10.0.0.1:65535", "::1", "[::1]:5", "[fe80::1]"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for bad in ["", ":1", "h:", "h:0", "h:65536", "h:1:2", "[h]:1", "[::1]5", "[::1", "a b"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_node_of_a_list_is_found() {
        let all =
            ["a,b", "n[3-9]", "n[3,5]x", "r[1-2]n[04,7],z", "one"].map(|list| first_node(list).unwrap());
        assert_eq!(all, ["a", "n3", "n3x", "r1n04", "one"]);
        assert_eq!(first_node("n[3"), None);
    }
}
