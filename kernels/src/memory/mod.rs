//! Memory of a device and of its host: regions, arenas, buffers, views, copies.

pub(crate) mod arena;
pub mod copy;
pub mod device;
pub mod dry_device;
pub(crate) mod ledger;
pub(crate) mod region;
pub(crate) mod transfer;
pub(crate) mod view;
