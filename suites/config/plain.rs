//! TOML values without the places they stand at.

use toml::Value;
use toml::de::DeValue;

/// A TOML value from an argument. A text that is not TOML is a string.
pub fn bare(text: &str) -> Value {
    match DeValue::parse(text).ok().and_then(|value| plain(value.get_ref()).ok()) {
        Some(Value::Datetime(_)) | None => Value::String(text.into()),
        Some(value) => value,
    }
}

/// A parsed value without its spans.
pub(crate) fn plain(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(integer) => {
            let digits = integer.as_str();
            let whole = i64::from_str_radix(digits, integer.radix());
            Value::Integer(whole.map_err(|_| format!("{digits} does not fit 64 bits; write a smaller number"))?)
        }
        DeValue::Float(float) => {
            let digits = float.as_str();
            Value::Float(digits.parse().map_err(|_| format!("{digits} is no number"))?)
        }
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(value) => Value::Datetime(*value),
        DeValue::Array(list) => {
            Value::Array(list.iter().map(|item| plain(item.get_ref())).collect::<Result<_, String>>()?)
        }
        DeValue::Table(table) => {
            let mut plain_table = toml::Table::new();
            for (name, item) in table.iter() {
                plain_table.insert(name.get_ref().to_string(), plain(item.get_ref())?);
            }
            Value::Table(plain_table)
        }
    })
}
