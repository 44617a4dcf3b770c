//! A tensor that has a home, and its copy where it is used.

use super::Move;
use crate::config::Home;
use crate::error::{Result, StepError};
use crate::shard::Resources;
use std::ops::Range;
use zbench_kernels::{Buffer, Category, DType, ViewMut};

/// A tensor of a home. Where it is used elsewhere, a part of it is copied there.
pub struct Homed {
    home: Home,
    category: Category,
    /// Away while a collective reads it.
    stored: Option<Buffer>,
    used: Option<Used>,
}

/// The copy of a part, where it is used.
struct Used {
    part: Range<usize>,
    state: Flight,
}

/// A buffer that may be on its way.
pub enum Flight {
    /// It is here.
    Here(Buffer),
}

impl Flight {
    /// Waits for it.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn land(self) -> Result<Buffer> {
        match self {
            Flight::Here(buffer) => Ok(buffer),
        }
    }
}

impl Homed {
    /// A tensor with unspecified contents.
    ///
    /// # Errors
    /// Its home is full.
    pub fn new(res: Resources<'_>, home: Home, category: Category, dtype: DType, len: usize) -> Result<Homed> {
        Ok(Homed { home, category, stored: Some(res.alloc_at(home, category, dtype, len)?), used: None })
    }

    fn stored(&self) -> Result<&Buffer> {
        self.stored.as_ref().ok_or_else(away)
    }

    /// All of it, where it lies in memory.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.stored.as_ref()
    }

    /// All of it, for writing, where it lies in memory.
    pub fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        self.stored.as_mut()
    }

    /// Takes the memory of what lives on the device, for a collective that reads it.
    pub fn take(&mut self) -> Option<Buffer> {
        self.stored.take()
    }

    /// Gives it back.
    pub fn put(&mut self, buffer: Buffer) {
        self.stored = Some(buffer);
    }

    /// Begins to copy all of it to where it is used, into a buffer of its own.
    ///
    /// # Errors
    /// There is no memory for the copy, or the disk has failed.
    pub fn copy_to(&self, res: Resources<'_>, at: Home) -> Result<Flight> {
        self.copy_part(res, at, 0..self.stored()?.len())
    }

    fn copy_part(&self, res: Resources<'_>, at: Home, part: Range<usize>) -> Result<Flight> {
        let stored = self.stored()?;
        let mut copy = res.alloc_at(at, Category::Communication, stored.dtype(), part.len())?;
        res.count_move(self.category, self.home, at, &copy);
        res.kernels.copy(stored.slice(part), copy.view_mut())?;
        Ok(Flight::Here(copy))
    }

    /// Begins to bring a part of it to where it is used; nothing where it lives there. Without `reads` its contents do not
    /// matter: all of the part will be written.
    ///
    /// # Errors
    /// As of [`Homed::copy_to`].
    pub fn fetch(&mut self, res: Resources<'_>, at: Home, part: Range<usize>, reads: bool) -> Result<()> {
        if at == self.home {
            return Ok(());
        }
        let state = match reads {
            true => self.copy_part(res, at, part.clone())?,
            false => Flight::Here(res.alloc_at(at, Category::Communication, self.stored()?.dtype(), part.len())?),
        };
        self.used = Some(Used { part, state });
        Ok(())
    }

    /// Waits for what was fetched.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn land(&mut self) -> Result<()> {
        if let Some(Used { part, state }) = self.used.take() {
            self.used = Some(Used { part, state: Flight::Here(state.land()?) });
        }
        Ok(())
    }

    /// A part of it where it is used, for reading and writing. What was fetched has landed.
    ///
    /// # Errors
    /// It was not fetched: a bug.
    pub fn part_mut(&mut self, at: Home, part: Range<usize>) -> Result<ViewMut<'_>> {
        if at == self.home {
            return Ok(self.stored.as_mut().ok_or_else(away)?.slice_mut(part));
        }
        match &mut self.used {
            Some(Used { part: fetched, state: Flight::Here(buffer) }) => {
                Ok(buffer.slice_mut(part.start - fetched.start..part.end - fetched.start))
            }
            _ => Err(away()),
        }
    }

    /// Begins to take what was fetched back to where it lives.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn store(&mut self, res: Resources<'_>, from: Home) -> Result<()> {
        let Some(Used { part, state }) = self.used.take() else { return Ok(()) };
        let copy = state.land()?;
        res.count_move(self.category, from, self.home, &copy);
        let stored = self.stored.as_mut().ok_or_else(away)?;
        res.kernels.copy(copy.view(), stored.slice_mut(part.clone()))?;
        self.used = Some(Used { part, state: Flight::Here(copy) });
        Ok(())
    }

    /// Waits until it is there, and frees the copy.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn settle(&mut self) -> Result<()> {
        match self.used.take() {
            Some(Used { state, .. }) => state.land().map(drop),
            None => Ok(()),
        }
    }
}

fn away() -> StepError {
    StepError::Input("a tensor is used where it has not been brought; this is a bug".into())
}

impl Resources<'_> {
    /// Counts a move of all of a buffer.
    pub fn count_move(&self, what: Category, from: Home, to: Home, buffer: &Buffer) {
        let bytes = (buffer.len() * buffer.dtype().size()) as u64;
        self.homes.moves().count(Move { what, from, to, bytes });
    }
}
