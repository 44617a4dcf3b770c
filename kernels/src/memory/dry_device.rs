//! A device that is only described: kernels for it say what scratch they would need, and run nothing. For planning.

#![allow(unsafe_code, reason = "methods of machines that take addresses")]

use crate::memory::device::{
    Address, Arguments, BLAS_WORKSPACE, Device, DeviceError, DeviceProps, Event, Launch, Result, Stream,
};
use crate::op::Gemm;
use std::sync::Arc;

/// A device that is not there.
#[derive(Debug, Clone)]
pub struct DryDevice(Arc<DeviceProps>);

impl DryDevice {
    /// An H100 with 80 GB, as NVIDIA's data sheet has it: what is planned for a GPU that is not known further.
    pub fn h100() -> DryDevice {
        DryDevice(Arc::new(DeviceProps {
            name: "NVIDIA H100 80GB HBM3".into(),
            capability: (9, 0),
            multiprocessors: 132,
            shared_bytes: 227 << 10,
            memory_bytes: 80_000_000_000,
        }))
    }

    fn absent(&self, call: &str) -> DeviceError {
        let (device, reason) = (self.0.name.clone(), "it is only planned for, nothing can run on it".into());
        DeviceError { device, call: call.into(), reason, out_of_memory: false }
    }
}

impl Device for DryDevice {
    fn props(&self) -> &DeviceProps {
        &self.0
    }

    fn name(&self) -> String {
        format!("cuda sm_{}{} (planned)", self.0.capability.0, self.0.capability.1)
    }

    fn allocate(&self, _: usize) -> Result<Address> {
        // No address of anything, and nobody goes there.
        Ok(256)
    }

    unsafe fn free(&self, _: Address, _: usize) {}

    fn new_stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(self.clone()))
    }

    fn blas_workspace(&self) -> usize {
        BLAS_WORKSPACE
    }

    fn load(&self, _: &[&'static str]) -> Result<()> {
        Err(self.absent("loading kernels"))
    }
}

impl Stream for DryDevice {
    unsafe fn launch(&self, launch: &Launch, _: Arguments<'_>) -> Result<()> {
        Err(self.absent(launch.kernel))
    }

    unsafe fn copy(&self, _: Address, _: Address, _: usize) -> Result<()> {
        Err(self.absent("a copy"))
    }

    unsafe fn upload(&self, _: &[u8], _: Address) -> Result<()> {
        Err(self.absent("a copy"))
    }

    unsafe fn download(&self, _: Address, _: &mut [u8]) -> Result<()> {
        Err(self.absent("a copy"))
    }

    unsafe fn memset(&self, _: Address, _: u8, _: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn blas_gemm(&self, _: &Gemm, _: Address, _: Address, _: Address, _: Address, _: usize) -> Result<bool> {
        Err(self.absent("a product"))
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn record_event(&self) -> Result<Box<dyn Event>> {
        Err(self.absent("a mark"))
    }

    fn wait_event(&self, _: &dyn Event) -> Result<()> {
        Err(self.absent("a mark"))
    }
}
