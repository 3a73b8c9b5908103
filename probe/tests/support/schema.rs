//! A validator for the part of JSON Schema that `docs/schema/gda-probe-1.json` uses. It panics on an unknown keyword,
//! so that the schema cannot use more than it checks.

use serde_json::Value;

const SCHEMA: &str = include_str!("../../docs/schema/gda-probe-1.json");

/// Panics where `document` violates the schema.
pub(crate) fn validate(document: &Value) {
    let errors = errors(document);
    assert!(errors.is_empty(), "the document violates the schema: {errors:#?}\n{document:#}");
}

/// The schema.
pub(crate) fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("the schema is JSON")
}

/// Where `document` violates the schema.
pub(crate) fn errors(document: &Value) -> Vec<String> {
    let schema = schema();
    let mut found = Vec::new();
    walk(&schema, &schema, document, "$", &mut found);
    found
}

fn walk(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (keyword, argument) in schema.as_object().expect("a schema is an object") {
        match keyword.as_str() {
            "$schema" | "$id" | "title" | "description" | "$defs" | "then" => {}
            "$ref" => {
                let pointer =
                    argument.as_str().and_then(|text| text.strip_prefix('#')).expect("a local reference");
                walk(root, root.pointer(pointer).expect("a definition"), value, at, found);
            }
            "type" => {
                if !is_of_type(value, argument.as_str().expect("one type")) {
                    found.push(format!("{at}: not {argument}"));
                }
            }
            "const" => {
                if value != argument {
                    found.push(format!("{at}: not {argument}"));
                }
            }
            "enum" => {
                if !argument.as_array().expect("values").contains(value) {
                    found.push(format!("{at}: {value} is none of {argument}"));
                }
            }
            "required" => {
                for key in argument.as_array().expect("names") {
                    if value.get(key.as_str().expect("a name")).is_none() {
                        found.push(format!("{at}: no {key}"));
                    }
                }
            }
            "properties" => {
                for (key, inner) in argument.as_object().expect("properties") {
                    if let Some(inner_value) = value.get(key) {
                        walk(root, inner, inner_value, &format!("{at}.{key}"), found);
                    }
                }
                // Readers accept keys of later versions; this version must state its own. A condition names some only.
                let stated = |key: &&String| argument.get(*key).is_some() || schema.get("type").is_none();
                let keys = value.as_object().into_iter().flat_map(|object| object.keys());
                for key in keys.filter(|key| !stated(key)) {
                    found.push(format!("{at}: {key} is not in the schema"));
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    walk(root, argument, item, &format!("{at}[{index}]"), found);
                }
            }
            "allOf" => {
                argument
                    .as_array()
                    .expect("schemas")
                    .iter()
                    .for_each(|one| walk(root, one, value, at, found));
            }
            "anyOf" => {
                let keeps = |one: &Value| {
                    let mut not = Vec::new();
                    walk(root, one, value, at, &mut not);
                    not.is_empty()
                };
                if !argument.as_array().expect("schemas").iter().any(keeps) {
                    found.push(format!("{at}: none of {argument}"));
                }
            }
            "if" => {
                let mut not = Vec::new();
                walk(root, argument, value, at, &mut not);
                if not.is_empty() {
                    walk(root, &schema["then"], value, at, found);
                }
            }
            other => panic!("the validator does not know {other}"),
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("the validator does not know the type {other}"),
    }
}
