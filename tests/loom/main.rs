//! Protocols without locks under loom: every interleaving of small groups, within a bound on preemptions. The protocols' own sources are
//! compiled here over loom's types (`sync`), so that no build flag is needed: `cargo test -p zbench-loom-tests --test loom`.

// Memory shared without a lock is what is tested.
#![allow(unsafe_code)]

mod comm;
mod pool;
mod sync;
