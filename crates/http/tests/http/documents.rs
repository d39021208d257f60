//! The book's page on the HTTP interface, against the interface.

use std::fmt::Write as _;

use okdb_http::Code;

const PAGE: &str = include_str!("../../../../docs/http-api.md");

#[test]
fn the_page_has_the_table_of_codes_as_it_is() {
    let mut table = String::from("| status | code | meaning |\n|---|---|---|\n");
    for code in Code::ALL {
        writeln!(table, "| {} | `{}` | {} |", code.status().as_u16(), code.text(), code.meaning()).unwrap();
    }
    assert!(PAGE.contains(&table), "docs/http-api.md should hold this table:\n\n{table}");
}
