//! The book's page on the HTTP interface, against the interface.

use std::fmt::Write as _;

use okdb_http::Code;

use crate::server::Server;

const PAGE: &str = include_str!("../../../../docs/http-api.md");

#[test]
fn the_page_has_the_table_of_codes_as_it_is() {
    let mut table = String::from("| status | code | meaning |\n|---|---|---|\n");
    for code in Code::ALL {
        writeln!(
            table,
            "| {} | `{}` | {} |",
            code.status().as_u16(),
            code.text(),
            code.meaning()
        )
        .unwrap();
    }
    assert!(
        PAGE.contains(&table),
        "docs/http-api.md should hold this table:\n\n{table}"
    );
}

/// The words of a command line; single quotes hold one together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (place, part) in line.split('\'').enumerate() {
        if place % 2 == 1 {
            words.last_mut().unwrap().push_str(part);
            continue;
        }
        for (place, piece) in part.split_whitespace().enumerate() {
            if place > 0 || part.starts_with(char::is_whitespace) {
                words.push(String::new());
            }
            words.last_mut().unwrap().push_str(piece);
        }
        if part.len() > 1 && part.ends_with(char::is_whitespace) {
            words.push(String::new());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Runs a curl command of the page and gives the body of the answer.
fn curl(server: &Server, command: &str) -> String {
    let (mut method, mut path, mut headers, mut body) = (None, String::new(), Vec::new(), None);
    let mut words = words(command).into_iter();
    assert_eq!(words.next().as_deref(), Some("curl"));
    while let Some(word) = words.next() {
        match word.as_str() {
            "-X" => method = words.next(),
            "-g" => {}
            "-H" => {
                let header = words.next().unwrap();
                let (name, value) = header.split_once(": ").unwrap();
                headers.push((name.to_owned(), value.to_owned()));
            }
            "--json" => {
                headers.push(("content-type".to_owned(), "application/json".to_owned()));
                body = words.next();
            }
            "--data-binary" => body = words.next(),
            url => {
                let rest = url
                    .strip_prefix("localhost:8484")
                    .unwrap_or_else(|| panic!("{url} in {command}"));
                // As curl sends them.
                path = rest.replace('"', "%22");
            }
        }
    }
    let method = method.unwrap_or_else(|| if body.is_some() { "POST" } else { "GET" }.to_owned());
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let answer = server.client().call(
        &method,
        &path,
        &headers,
        body.unwrap_or_default().as_bytes(),
    );
    answer.text().to_owned()
}

/// Whether a text is as expected, where `…` stands for anything.
fn fits(text: &str, expected: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<_> = parts.collect();
    for (place, part) in parts.iter().enumerate() {
        let found = if place + 1 == parts.len() {
            rest.rfind(part)
        } else {
            rest.find(part)
        };
        let Some(found) = found else {
            return false;
        };
        rest = &rest[found + part.len()..];
    }
    rest.is_empty()
}

#[test]
fn the_page_s_examples_do_what_it_says() {
    let server = Server::start();
    let mut count = 0;
    for block in PAGE
        .split("```console\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
    {
        for example in block.split("$ ").skip(1) {
            // The command ends where its quotes are closed at the end of a line.
            let mut end = 0;
            for line in example.split_inclusive('\n') {
                end += line.len();
                if example[..end].matches('\'').count() % 2 == 0 {
                    break;
                }
            }
            let (command, expected) = example.split_at(end);
            let answer = curl(&server, command.trim());
            assert!(
                fits(answer.trim_end(), expected.trim_end()),
                "{command}{answer}\nexpected:\n{expected}"
            );
            count += 1;
        }
    }
    assert!(count > 15, "{count} examples were found");
}
