//! The `OpenAPI` 3.1 document. It is generated from the route table, so it cannot differ from the
//! served routes.

use hoist_api::Problem;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::route::{AccessClass, Answer, Content, RouteSpec, RouteTable};

/// The whole document.
pub fn document(table: &RouteTable) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut specs: Vec<&RouteSpec> = table.specs().collect();
    specs.sort_by_key(|spec| (spec.path, spec.method.as_str()));
    let mut paths = Map::new();
    for spec in specs {
        let path = spec.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[spec.method.as_str().to_ascii_lowercase()] = operation(spec, &mut generator);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "hoist",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "member": { "type": "mutualTLS" },
            },
            "responses": {
                "Problem": {
                    "description": "What went wrong, and what to do about it",
                    "content": { hoist_api::problem::MEDIA_TYPE: { "schema": problem } },
                },
            },
            "schemas": generator.take_definitions(true),
        },
    })
}

fn operation(spec: &RouteSpec, generator: &mut SchemaGenerator) -> Value {
    let in_path = spec.path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        Some(json!({
            "name": name.trim_start_matches('*'),
            "in": "path",
            "required": true,
            "schema": { "type": "string" },
        }))
    });
    let in_query = spec.query.iter().map(|parameter| {
        let mut schema = json!({ "type": "string" });
        if parameter.is_flag {
            schema["enum"] = json!(["1", "0", "true", "false"]);
        }
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.about,
            "schema": schema,
        })
    });
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let mut responses = Map::new();
    for Answer { status, content } in &spec.answers {
        let status = status.to_string();
        let response = responses.entry(status).or_insert_with(|| json!({ "description": "Done" }));
        if let Some(content) = content {
            response["content"][content.media_type] = media(content, generator);
        }
    }
    responses.insert("default".into(), json!({ "$ref": "#/components/responses/Problem" }));
    let mut operation = json!({
        "operationId": operation_id(spec),
        "summary": spec.summary,
        "parameters": parameters,
        "responses": responses,
        "x-hoist-access-class": spec.access.to_string(),
    });
    if let Some(content) = &spec.request {
        let content = json!({ content.media_type: media(content, generator) });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    match spec.access {
        AccessClass::Admin { .. } | AccessClass::Bss { .. } => {
            operation["security"] = json!([{ "token": [] }]);
        }
        AccessClass::Agent => {
            operation["security"] = json!([{ "token": [] }, { "member": [] }]);
        }
        AccessClass::Member => operation["security"] = json!([{ "member": [] }]),
        AccessClass::Lockable { .. } => operation["security"] = json!([{}, { "token": [] }]),
        AccessClass::Open | AccessClass::Proof => operation["security"] = json!([]),
    }
    operation
}

fn media(content: &Content, generator: &mut SchemaGenerator) -> Value {
    match content.schema {
        Some(schema) => json!({ "schema": schema(generator) }),
        None => json!({}),
    }
}

/// `get_admin_v1_tokens_id`: stable and unique, since method and path are.
fn operation_id(spec: &RouteSpec) -> String {
    let words = spec.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    std::iter::once(spec.method.as_str().to_ascii_lowercase())
        .chain(words.map(str::to_owned))
        .collect::<Vec<_>>()
        .join("_")
}
