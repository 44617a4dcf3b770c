mod effects;
mod grids;
pub mod machine;
mod rates;
mod values;
