pub mod any;
mod record;
mod store;
