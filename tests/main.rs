//! The fast tier of the tests of `zbench`: what needs no process, the output of every command, and witnesses of what does.
//! tests/program/ has the other tests that start the program.

mod cases;
mod config;
mod durability;
mod environment;
mod gate;
mod gate_bench;
mod golden;
mod grid;
mod import;
mod launch_cells;
mod launch_detect;
mod launched;
mod notebook;
mod planner;
mod search;
mod support;
mod timeline;
mod witnesses;
mod written;
