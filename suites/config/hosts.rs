//! Where the processes of a launch are, and which cores they may use.

use zbench_collectives::{Rendezvous, RendezvousError};

/// The processes of a launch, by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    one: bool,
    places: Vec<RankCores>,
    threads: usize,
}

/// The host of a process, and its cores there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankCores {
    /// Name of its host.
    pub host: String,
    /// Numbers of the cores that it may use, ascending; empty where that is not known.
    pub cores: Vec<usize>,
    /// The processor quota of its control group, in whole cores, at least one; absent where nothing limits it.
    pub quota: Option<usize>,
}

impl Hosts {
    /// Exchanges the cores of processes that have met. `cores` are those that this one may use, `quota` its processor quota.
    ///
    /// # Errors
    /// A process is lost.
    pub fn meet(met: &mut Rendezvous, cores: &[usize], quota: Option<f64>) -> Result<Hosts, RendezvousError> {
        let quota = quota.map(|quota| (quota as usize).max(1));
        let told = met.exchange(&serde_json::to_vec(&(cores, quota)).unwrap_or_default())?;
        let place = |(host, told): (&String, &Vec<u8>)| {
            let (cores, quota) = serde_json::from_slice(told).unwrap_or_default();
            RankCores { host: host.clone(), cores, quota }
        };
        let places = met.hosts().iter().zip(&told).map(place).collect();
        Ok(Hosts::new(met.one_host(), places))
    }

    /// Processes at these places; `one`: they see each other's memory.
    pub fn new(one: bool, places: Vec<RankCores>) -> Hosts {
        let mut hosts = Hosts { one, places, threads: 1 };
        hosts.threads = hosts.scarcest().map_or(1, |(_, share)| share);
        hosts
    }

    /// Processes of these hosts, whose cores are not known.
    pub fn of_names<'n>(names: impl IntoIterator<Item = &'n str>) -> Hosts {
        Hosts::new(
            false,
            names.into_iter().map(|host| RankCores { host: host.into(), ..RankCores::default() }).collect(),
        )
    }

    /// Whether shared memory moves the bytes between them where nothing else was asked for; else sockets do.
    pub fn share_memory(&self) -> bool {
        self.one
    }

    /// Threads of each rank where none are stated: the cores that a rank may use, divided by the ranks that share them. All have
    /// as many as the rank with the fewest.
    pub fn threads_per_rank(&self) -> usize {
        self.threads
    }

    /// Ranks on the host of a rank, itself included.
    pub fn neighbours(&self, rank: usize) -> Vec<usize> {
        self.beside(rank, |_, _| true)
    }

    /// Ranks that may use cores of a rank, itself included.
    pub fn sharers(&self, rank: usize) -> Vec<usize> {
        self.beside(rank, |own, other| {
            own.is_empty() || other.is_empty() || other.iter().any(|core| own.binary_search(core).is_ok())
        })
    }

    /// Ranks on the host of a rank for which `is_one` holds, given the cores of that rank and theirs.
    fn beside(&self, rank: usize, is_one: impl Fn(&[usize], &[usize]) -> bool) -> Vec<usize> {
        let Some(own) = self.places.get(rank) else { return Vec::new() };
        let all = self.places.iter().enumerate().filter(|(_, other)| other.host == own.host);
        all.filter(|(_, other)| is_one(&own.cores, &other.cores)).map(|(rank, _)| rank).collect()
    }

    /// Cores that the ranks on the host of a rank may use, ascending; empty where that is not known.
    pub fn cores(&self, rank: usize) -> Vec<usize> {
        let mut cores: Vec<usize> =
            self.neighbours(rank).into_iter().flat_map(|rank| self.places[rank].cores.iter().copied()).collect();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// The rank with the fewest cores for itself, and how many these are.
    fn scarcest(&self) -> Option<(usize, usize)> {
        let share = |rank: usize| {
            let (cores, ranks) = self.shared(rank);
            (rank, (cores / ranks.max(1)).max(1))
        };
        (0..self.places.len()).map(share).min_by_key(|(_, share)| *share)
    }

    /// How many cores a rank may use at once, and the ranks that share them. A processor quota is of all ranks of a host.
    fn shared(&self, rank: usize) -> (usize, usize) {
        let RankCores { cores, quota, .. } = &self.places[rank];
        let (cores, sharers, neighbours) = (cores.len(), self.sharers(rank).len(), self.neighbours(rank).len());
        let scarcer = quota.filter(|quota| quota.saturating_mul(sharers) < cores.saturating_mul(neighbours));
        scarcer.map_or((cores, sharers), |quota| (quota, neighbours))
    }

    /// How many threads a rank has where none are stated, and why.
    pub fn words(&self) -> String {
        let Some((rank, threads)) = self.scarcest() else { return String::new() };
        let (own, sharers) = self.shared(rank);
        let differ = (0..self.places.len()).any(|other| self.shared(other) != (own, sharers));
        let who = if differ {
            format!("rank {rank} on {} has the fewest,", self.places[rank].host)
        } else {
            "each rank has".into()
        };
        let shared = if sharers == 1 { "no other rank uses".into() } else { format!("{sharers} ranks share") };
        format!(
            "Cores that a rank may use: {who} {own}, which {shared}: hardware.threads_per_rank = {threads} where none is stated."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, cores: impl IntoIterator<Item = usize>) -> RankCores {
        let cores: Vec<usize> = cores.into_iter().collect();
        RankCores { host: host.into(), cores, quota: None }
    }

    #[test]
    fn a_rank_has_the_cores_that_it_may_use_divided_by_the_ranks_that_share_them() {
        let threads = |places: Vec<RankCores>| Hosts::new(true, places).threads_per_rank();
        assert_eq!(threads(vec![place("a", 0..2), place("b", 0..2)]), 2, "two hosts, a rank each");
        assert_eq!(threads(vec![place("a", 0..2), place("a", 0..2)]), 1, "two ranks that share two cores");
        assert_eq!(threads(vec![place("a", 0..4), place("a", 4..8)]), 4, "two ranks with a socket each");
        assert_eq!(threads(vec![place("a", [0]), place("a", [1])]), 1, "a core each");
        assert_eq!(
            threads(vec![place("a", 0..8), place("a", 0..8), place("b", 0..2)]),
            2,
            "as many as where there are fewest"
        );
        assert_eq!(threads(vec![place("a", [0]); 3]), 1, "more ranks than cores");
        let limited = RankCores { quota: Some(2), ..place("a", 0..8) };
        assert_eq!(threads(vec![limited.clone(), limited]), 1, "a processor quota of two cores");
        let bound = |cores: std::ops::Range<usize>| RankCores { quota: Some(4), ..place("a", cores) };
        assert_eq!(
            threads(vec![bound(0..4), bound(4..8)]),
            2,
            "ranks with cores of their own share the quota of their host"
        );
        assert_eq!(Hosts::of_names(["a", "a"]).threads_per_rank(), 1, "nothing is known");
    }

    #[test]
    fn ranks_that_share_cores_are_those_of_a_host_whose_cores_overlap() {
        let hosts = Hosts::new(true, vec![place("a", 0..2), place("a", 2..4), place("b", 0..2), place("a", 1..3)]);
        let sharers = [0, 1, 2, 3].map(|rank| hosts.sharers(rank));
        assert_eq!(sharers, [vec![0, 3], vec![1, 3], vec![2], vec![0, 1, 3]]);
        assert_eq!(
            (hosts.cores(1), hosts.cores(2), hosts.neighbours(3)),
            (vec![0, 1, 2, 3], vec![0, 1], vec![0, 1, 3])
        );
        let unknown = Hosts::of_names(["a", "a", "b"]);
        assert_eq!((unknown.sharers(1), unknown.cores(1)), (vec![0, 1], Vec::new()));
    }

    #[test]
    fn what_decides_the_threads_is_said() {
        let said = |places: Vec<RankCores>| Hosts::new(true, places).words();
        let begin = "Cores that a rank may use: ";
        let end = "where none is stated.";
        assert_eq!(
            said(vec![place("a", 0..2), place("b", 0..2)]),
            format!("{begin}each rank has 2, which no other rank uses: hardware.threads_per_rank = 2 {end}")
        );
        assert_eq!(
            said(vec![place("a", 0..8), place("a", 0..8), place("b", 0..2)]),
            format!(
                "{begin}rank 2 on b has the fewest, 2, which no other rank uses: hardware.threads_per_rank = 2 {end}"
            )
        );
        let shared = said(vec![place("a", 0..4), place("a", 0..4)]);
        assert!(shared.contains("each rank has 4, which 2 ranks share: hardware.threads_per_rank = 2"), "{shared}");
    }
}
