mod machine;
mod rates;
mod values;
