//! One call under test: how it is named when it goes wrong, and buffers that notice what they should not.

use super::oracle::Wanted;
use super::sample::Sample;
use std::ops::Range;
use zbench_collectives::{CommError, Communicator, Kind};
use zbench_kernels::{DType, View, ViewMut};

/// Elements around every buffer; odd, so that buffers begin at no round address.
const GUARD: usize = 5;

/// A call under test.
pub struct Case<'a> {
    pub comm: &'a dyn Communicator,
    pub kind: Kind,
    pub dtype: DType,
    pub len: usize,
    pub in_place: bool,
}

impl<'a> Case<'a> {
    pub fn new<T: Sample>(comm: &'a dyn Communicator, kind: Kind, len: usize, in_place: bool) -> Case<'a> {
        Case { comm, kind, dtype: T::DTYPE, len, in_place }
    }

    /// A number that is the same on all ranks and another for every case.
    pub fn seed(&self) -> u64 {
        let mut seed = self.len as u64 ^ (self.dtype.size() as u64) << 56;
        for byte in format!("{:?}", self.kind.op()).bytes().chain(self.kind.name().bytes()) {
            seed = seed.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
        }
        seed
    }

    pub fn fail(&self, what: impl std::fmt::Display) -> ! {
        let Case { comm, kind, dtype, len, in_place } = self;
        let (backend, rank, size) = (comm.backend(), comm.rank(), comm.size());
        let place = if *in_place { "in place" } else { "out of place" };
        panic!("{backend} {kind:?} of {len} x {dtype} {place}, rank {rank} of {size}: {what}");
    }

    /// The call must be carried out.
    pub fn done(&self, result: Result<(), CommError>) {
        if let Err(error) = result {
            self.fail(error);
        }
    }

    /// The call must be refused, before anything is done.
    pub fn refused(&self, result: Result<(), CommError>) {
        match result {
            Err(CommError::Invalid { operation, .. }) if operation == self.kind.name() => {}
            other => self.fail(format!("was to be refused as {}, and gave {other:?}", self.kind.name())),
        }
    }
}

/// A buffer with something around it.
pub struct Guarded<T> {
    now: Vec<T>,
    before: Vec<T>,
}

impl<T: Sample> Guarded<T> {
    pub fn new(values: Vec<T>) -> Guarded<T> {
        let guard = |salt: u64| super::sample::values::<T>(salt, values.len(), GUARD, None);
        let now: Vec<T> = [guard(1), values.clone(), guard(2)].concat();
        Guarded { before: now.clone(), now }
    }

    fn inside(&self) -> Range<usize> {
        GUARD..self.now.len() - GUARD
    }

    pub fn view(&self) -> View<'_> {
        View::of(&self.now[self.inside()])
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let inside = self.inside();
        ViewMut::of(&mut self.now[inside])
    }

    /// Everything is as it was.
    pub fn untouched(&self, case: &Case<'_>, what: &str) {
        self.outside_untouched(case, what, 0..0);
    }

    /// Everything but the elements of `range` is as it was.
    pub fn outside_untouched(&self, case: &Case<'_>, what: &str, range: Range<usize>) {
        let inside = range.start + GUARD..range.end + GUARD;
        let differs = |i: &usize| !inside.contains(i) && self.now[*i].bits() != self.before[*i].bits();
        if let Some(i) = (0..self.now.len()).find(differs) {
            let (index, now, before) = (i as isize - GUARD as isize, self.now[i].get(), self.before[i].get());
            let len = self.inside().len();
            case.fail(format!("{what} was changed outside {range:?}: index {index} of {len} was {before}, is {now}"));
        }
    }

    /// The elements of `range` are `wanted` (or as they were where nothing moves), and all others as they were.
    pub fn holds(&self, case: &Case<'_>, moves: bool, range: Range<usize>, wanted: &[Wanted<T>]) {
        if !moves {
            return self.untouched(case, "recv");
        }
        self.outside_untouched(case, "recv", range.clone());
        assert_eq!(range.len(), wanted.len(), "the suite's own lengths");
        let got = &self.now[GUARD..][range];
        if let Some(i) = (0..wanted.len()).find(|i| !wanted[*i].accepts(got[*i])) {
            let wrong = (0..wanted.len()).filter(|i| !wanted[*i].accepts(got[*i])).count();
            let (got, Wanted { value, tolerance }) = (got[i].get(), wanted[i]);
            let value = value.get();
            case.fail(format!(
                "index {i} is {got:?}, not {value:?} (tolerance {tolerance:e}); {wrong} of {} differ",
                wanted.len()
            ));
        }
    }

    /// As `holds` with the very values.
    pub fn equals(&self, case: &Case<'_>, moves: bool, range: Range<usize>, wanted: &[T]) {
        let exact = |value: &T| Wanted { value: *value, tolerance: 0.0 };
        self.holds(case, moves, range, &wanted.iter().map(exact).collect::<Vec<_>>());
    }
}
