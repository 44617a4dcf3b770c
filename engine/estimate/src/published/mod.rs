//! Results that others published (tests/published), turned into jobs and compared with what is predicted for them.
