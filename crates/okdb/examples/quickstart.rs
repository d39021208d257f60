//! Opens a root, writes, indexes, queries and follows its own commits: `cargo run -p okdb --example quickstart -- FOLDER`.
//!
//! FOLDER may be the root of a running cluster: what this program writes, the cluster serves.

use std::error::Error;

use okdb::{
    Db,
    store::{Action, Guard, Operation, Write},
};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "./okdb-data".into());
    let db = Db::open(&folder)?;
    let mut commits = db.subscribe();

    let planets = db.ensure_type("planets")?;
    for (key, moons, year_days) in [("mercury", 0, 88), ("earth", 1, 365), ("mars", 2, 687)] {
        planets.put(
            key,
            &json!({ "moons": moons, "year": { "days": year_days } }),
        )?;
    }
    planets.ensure_index(&["year.days"], false)?;
    for item in planets
        .find(&json!({ "year.days": { "$gte": 365 } }))?
        .items
    {
        println!("{} {}", item.key, item.value);
    }

    // All or nothing: both, or neither.
    let put = |key: &str, value: &str| Operation {
        type_name: "planets".into(),
        key: key.into(),
        guard: Guard::default(),
        ttl: None,
        action: Action::Put(value.into()),
    };
    let both = vec![
        put("venus", r#"{"moons":0,"year":{"days":225}}"#),
        put("jupiter", r#"{"moons":95,"year":{"days":4333}}"#),
    ];
    planets.env().submit(Write::Transaction(both)).wait()?;
    println!("{} planets", planets.count(&json!({}))?);

    if let Some(commit) = commits.next_blocking() {
        println!(
            "the first of our commits took {} to clock {}",
            commit.env, commit.clock
        );
    }
    Ok(())
}
