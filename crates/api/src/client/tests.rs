//! The client against a server that answers from a script, over a real connection.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use super::*;
use crate::Code;

/// Answers one request with these bytes, in these pieces, and returns the request.
fn answer_once(pieces: &'static [&'static str]) -> (Client, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        let mut buffer = [0; 4096];
        while !asked.windows(4).any(|window| window == b"\r\n\r\n") {
            let count = stream.read(&mut buffer).unwrap();
            asked.extend_from_slice(&buffer[..count]);
        }
        for piece in pieces {
            stream.write_all(piece.as_bytes()).unwrap();
            stream.flush().unwrap();
        }
        String::from_utf8(asked).unwrap()
    });
    let access = Access { token: Some("hoist_x_kettle".into()), authorities: None };
    (Client::new(base.parse().unwrap(), access).unwrap(), server)
}

#[tokio::test]
async fn names_are_escaped_in_paths_and_the_token_is_sent() {
    let (client, server) = answer_once(&["HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"]);
    let found = client.node_by(NodeKey::Ip, "fd00::1/64 x").await;
    assert!(matches!(found, Err(ClientError::Foreign { status: 404, write: false, .. })));
    let asked = server.join().unwrap();
    assert!(
        asked.starts_with("GET /inventory/v1/nodes/by/ip/fd00::1%2F64%20x?state=1 HTTP"),
        "{asked}"
    );
    assert!(asked.contains("authorization: Bearer hoist_x_kettle"), "{asked}");
    assert!(!format!("{client:?}").contains("kettle"));
}

#[tokio::test]
async fn missing_object_is_an_answer_and_other_problems_are_errors() {
    let (client, _server) = answer_once(&[
        "HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\r\n",
        r#"{"type":"urn:hoist:problem:not-found","title":"No such object","status":404}"#,
    ]);
    assert!(client.node_by(NodeKey::Name, "n1").await.unwrap().is_none());

    let (client, _server) = answer_once(&[
        "HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\r\n",
        r#"{"type":"urn:hoist:problem:ambiguous","title":"More than one","status":409}"#,
    ]);
    let error = client.node_by(NodeKey::Ip, "10.0.0.1").await.unwrap_err();
    assert_eq!(error.code(), Some(&Code::Ambiguous));
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_has_an_unknown_outcome() {
    let pieces = &["HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"];
    let (client, _server) = answer_once(pieces);
    let error = client.delete(vec!["Node/n1".into()], false, None).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");

    let (client, _server) = answer_once(pieces);
    let error = client.delete(vec!["Node/n1".into()], true, None).await.unwrap_err();
    assert!(!error.outcome_unknown(), "a dry run leaves nothing in doubt: {error:?}");
}

#[tokio::test]
async fn refused_connection_differs_from_a_broken_one() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base = format!("http://{unused}").parse().unwrap();
    let client = Client::new(base, Access::default()).unwrap();
    let error = client.status().await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
}

#[tokio::test]
async fn lines_are_cut_wherever_the_pieces_end() {
    let (client, _server) = answer_once(&[
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"a\":1}\n{\"a\"",
        ":2}\r\n",
        "\n{\"a\":3}",
    ]);
    let mut lines = client.export(None).await.unwrap();
    let mut seen = Vec::new();
    while let Some(line) = lines.next().await.unwrap() {
        seen.push(String::from_utf8(line.to_vec()).unwrap());
    }
    assert_eq!(seen, ["{\"a\":1}", "{\"a\":2}", "", "{\"a\":3}"]);
}

#[tokio::test]
async fn events_are_read_from_their_data() {
    let (client, server) = answer_once(&[
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: alive\n\n",
        "id: i.1\nevent: node.changed\ndata: {\"id\":\"i.1\",\"at\":\"2026-01-01T00:00:00Z\",",
        "\"kind\":\"node.changed\",\"subject\":\"node/n1\"}\n\n",
    ]);
    let mut events = client.events(Some("i.0"), Some("node")).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().subject, "node/n1");
    assert!(events.next().await.unwrap().is_none());
    assert!(server.join().unwrap().contains("last-event-id: i.0"));
}

#[tokio::test]
async fn down_is_an_answer() {
    let (client, _server) = answer_once(&[
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n",
        r#"{"status":"down","checks":[{"name":"store","status":"down"}]}"#,
    ]);
    assert_eq!(client.ready().await.unwrap().status, crate::event::HealthStatus::Down);
}

#[test]
fn file_without_an_authority_is_refused() {
    let base: Url = "https://controller:27443".parse().unwrap();
    for pem in ["", "kettle", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let access = Access { token: None, authorities: Some(pem.into()) };
        assert!(Client::new(base.clone(), access).is_err(), "{pem}");
    }
    let mail: Url = "mailto:root@localhost".parse().unwrap();
    assert!(matches!(Client::new(mail, Access::default()), Err(ClientError::Address { .. })));
}
