//! Protocols under loom: every interleaving of small groups, within a bound on preemptions.

// Memory shared without a lock is what is tested.
#![allow(unsafe_code)]

mod comm;

use zbench_kernels_testing::loom as sync;
