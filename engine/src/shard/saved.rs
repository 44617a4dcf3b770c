//! Activations that live elsewhere: what forward has kept of a layer goes after forward and comes back before backward.

use super::Resources;
use super::homed::Pages;
use crate::config::Home;
use crate::error::{Result, StepError};
use crate::layers::Saved;
use std::collections::VecDeque;
use zbench_kernels::{Buffer, Category};

/// What of a layer's saved tensors is on its way between host memory and disk, in the order of its buffers.
#[derive(Default)]
pub struct Travelling {
    going: VecDeque<Pages>,
    coming: VecDeque<Pages>,
}

impl Travelling {
    /// Begins to take a layer's saved tensors to their home. In their place stands where they are.
    ///
    /// # Errors
    /// There is no memory for them, or the disk has failed.
    pub fn store(&mut self, res: Resources<'_>, home: Home, saved: &mut Saved) -> Result<()> {
        saved.each_buffer(&mut |buffer| {
            let (dtype, len) = (buffer.dtype(), buffer.len());
            res.count_move(Category::Activations, Home::Device, Home::Host, buffer);
            if home == Home::Host {
                let mut copy = res.alloc_at(home, Category::Activations, dtype, len)?;
                res.kernels.copy(buffer.view(), copy.view_mut())?;
                *buffer = copy;
                return Ok(());
            }
            let mut pages = res.host_pages(dtype, len)?;
            res.kernels.copy(buffer.view(), pages.view_mut())?;
            res.count_move(Category::Activations, Home::Host, Home::Disk, buffer);
            let place = res.alloc_at(home, Category::Activations, dtype, len)?;
            self.going.push_back(Pages::write(res, &place, pages)?);
            *buffer = place;
            Ok(())
        })
    }

    /// Waits until they are there.
    ///
    /// # Errors
    /// The disk has failed.
    pub fn settle(&mut self) -> Result<()> {
        self.going.drain(..).try_for_each(|pages| pages.wait().map(drop))
    }

    /// Begins to bring them back.
    ///
    /// # Errors
    /// There is no memory for them, or the disk has failed.
    pub fn fetch(&mut self, res: Resources<'_>, home: Home, saved: &mut Saved) -> Result<()> {
        self.settle()?;
        saved.each_buffer(&mut |buffer| {
            if home == Home::Host {
                return back(res, buffer, None);
            }
            let pages = res.host_pages(buffer.dtype(), buffer.len())?;
            res.count_move(Category::Activations, Home::Disk, Home::Host, buffer);
            self.coming.push_back(Pages::read(res, buffer, pages)?);
            Ok(())
        })
    }

    /// Waits until they are on the device; nothing where they are.
    ///
    /// # Errors
    /// There is no memory for them, or the disk has failed.
    pub fn land(&mut self, res: Resources<'_>, saved: &mut Saved) -> Result<()> {
        if self.coming.is_empty() {
            return Ok(());
        }
        let none = || StepError::Input("a saved tensor is missing on the disk; this is a bug".into());
        saved.each_buffer(&mut |buffer| {
            let pages = self.coming.pop_front().ok_or_else(none)?.wait()?;
            back(res, buffer, Some(pages))
        })
    }
}

/// Puts a buffer on the device, with its contents: those in `pages`, or its own.
fn back(res: Resources<'_>, buffer: &mut Buffer, pages: Option<Buffer>) -> Result<()> {
    let mut copy = res.alloc(Category::Activations, buffer.dtype(), buffer.len())?;
    res.count_move(Category::Activations, Home::Host, Home::Device, &copy);
    res.kernels.copy(pages.as_ref().unwrap_or(buffer).view(), copy.view_mut())?;
    *buffer = copy;
    Ok(())
}
