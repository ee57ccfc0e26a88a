//! A validator of JSON Schema for exactly the keywords that the schema of configurations has; any other is an error.

use serde_json::{Map, Value};

/// Keywords that say nothing about a value.
const ANNOTATIONS: [&str; 6] = ["$schema", "$defs", "title", "description", "default", "deprecated"];

/// Faults of a value, by their paths in it.
pub fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    check(schema, value, "", &mut faults);
    faults
}

fn is_valid(schema: &Value, value: &Value) -> bool {
    faults(schema, value).is_empty()
}

fn check(schema: &Value, value: &Value, path: &str, faults: &mut Vec<String>) {
    let keywords = schema.as_object().unwrap_or_else(|| panic!("{path}: a schema is an object, and not {schema}"));
    for (keyword, says) in keywords {
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let fault = match keyword.as_str() {
            "type" => !is_of_type(value, says.as_str().unwrap_or_default()),
            "enum" => !of(says).contains(value),
            "minimum" => value.is_number() && number(value) < number(says),
            "maximum" => value.is_number() && number(value) > number(says),
            "pattern" => value.as_str().is_some_and(|text| !matches(says.as_str().unwrap_or_default(), text)),
            "required" => {
                let is_absent = |key: &Value| value.get(key.as_str().unwrap_or_default()).is_none();
                value.is_object() && of(says).iter().any(is_absent)
            }
            // The one definition that there is: strings with variables.
            "$ref" => !value.as_str().is_some_and(|text| text.contains("${env:")),
            "anyOf" => !of(says).iter().any(|schema| is_valid(schema, value)),
            "oneOf" => of(says).iter().filter(|schema| is_valid(schema, value)).count() != 1,
            "propertyNames" => keys(value).any(|(key, _)| !is_valid(says, &Value::from(key.as_str()))),
            "properties" => {
                for (key, value) in keys(value) {
                    says.get(key).into_iter().for_each(|schema| check(schema, value, &format!("{path}/{key}"), faults));
                }
                false
            }
            "additionalProperties" => {
                let known = keywords.get("properties").and_then(Value::as_object);
                for (key, value) in keys(value).filter(|(key, _)| !known.is_some_and(|known| known.contains_key(*key)))
                {
                    match says {
                        Value::Bool(false) => faults.push(format!("{path}: no key {key}")),
                        schema => check(schema, value, &format!("{path}/{key}"), faults),
                    }
                }
                false
            }
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(says, item, &format!("{path}/{place}"), faults);
                }
                false
            }
            annotation if ANNOTATIONS.contains(&annotation) => false,
            other => panic!("{path}: the validator knows no keyword {other}"),
        };
        if fault {
            faults.push(format!("{path}: {keyword} {says}, and not {value}"));
        }
    }
}

fn of(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn keys(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("the validator knows no type {other}"),
    }
}

/// Whether a text matches a pattern `^...$` of classes with `+` or `{1,N}`, and of groups of words.
fn matches(pattern: &str, text: &str) -> bool {
    let inner = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$'));
    continues(inner.unwrap_or_else(|| panic!("{pattern} is open")), text)
}

fn continues(pattern: &str, text: &str) -> bool {
    if pattern.is_empty() {
        return text.is_empty();
    }
    if let Some((words, rest)) = pattern.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        return words.split('|').any(|word| text.strip_prefix(word).is_some_and(|text| continues(rest, text)));
    }
    let Some((class, rest)) = pattern.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        panic!("the validator cannot match {pattern}");
    };
    let length = text.chars().take_while(|character| is_in(class, *character)).count();
    if let Some(rest) = rest.strip_prefix('+') {
        return length > 0 && continues(rest, &text[length..]);
    }
    let Some((most, rest)) = rest.strip_prefix("{1,").and_then(|rest| rest.split_once('}')) else {
        panic!("the validator cannot match {pattern}");
    };
    (1..=most.parse().unwrap_or_default()).contains(&length) && continues(rest, &text[length..])
}

/// Whether a class such as `A-Z0-9._-` has a character.
fn is_in(class: &str, character: char) -> bool {
    let members: Vec<char> = class.chars().collect();
    let ranges = members.windows(3).filter(|range| range[1] == '-');
    ranges.into_iter().any(|range| (range[0]..=range[2]).contains(&character)) || members.contains(&character)
}

#[test]
fn keywords_mean_what_the_standard_says() {
    let schema = serde_json::json!({
        "type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {
            "a": { "anyOf": [{ "type": "integer", "minimum": 1, "maximum": 3 }, { "enum": ["auto"] }] },
            "b": { "type": "array", "items": { "type": "string", "pattern": "^[0-9]+(ms|s)$" } },
            "c": { "type": "object", "propertyNames": { "pattern": "^[A-Za._-]{1,3}$" }, "additionalProperties": { "type": "boolean" } },
            "d": { "oneOf": [{ "required": ["x"] }, { "required": ["y"] }] },
        },
    });
    for good in
        [r#"{"a":3}"#, r#"{"a":"auto","b":["5ms","10s"]}"#, r#"{"a":1,"c":{"a.-":true}}"#, r#"{"a":1,"d":{"x":1}}"#]
    {
        assert_eq!(faults(&schema, &serde_json::from_str(good).expect("JSON")), [""; 0], "{good}");
    }
    for bad in [
        "[]",
        "{}",
        r#"{"a":4}"#,
        r#"{"a":0}"#,
        r#"{"a":"audo"}"#,
        r#"{"a":1,"e":1}"#,
        r#"{"a":1,"b":["5m"]}"#,
        r#"{"a":1,"b":["ms"]}"#,
        r#"{"a":1,"b":["5ms "]}"#,
        r#"{"a":1,"c":{"aaaa":true}}"#,
        r#"{"a":1,"c":{"b":true}}"#,
        r#"{"a":1,"c":{"a":1}}"#,
        r#"{"a":1,"d":{"x":1,"y":1}}"#,
    ] {
        assert_eq!(faults(&schema, &serde_json::from_str(bad).expect("JSON")).len(), 1, "{bad}");
    }
}
