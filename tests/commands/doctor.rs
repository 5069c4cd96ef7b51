//! `fusebox doctor` as a user meets it.
//!
//! In: nothing. Out: what this machine has, as text and as JSON.

use crate::commands::{json, programs, told};

#[test]
fn it_tells_what_is_there_and_what_is_missing() {
    let found = json(&["doctor", "--json"]);
    assert!(found["threads"].as_u64().is_some_and(|n| n > 0));
    assert!(found["levels"].as_array().is_some_and(|levels| levels.contains(&"portable".into())));
    let folder = programs();
    assert_eq!(found["cache"]["folder"].as_str(), folder.to_str());
    let devices = found["devices"].as_array().expect("a list");
    assert_eq!((&devices[0]["name"], &devices[0]["ready"]), (&"cpu".into(), &true.into()));
    // A device is ready or says what is missing.
    assert!(
        devices[1..].iter().all(|device| device["missing"].is_string() != device["ready"].as_bool().unwrap())
    );
    assert_eq!(found["default_model"]["found"], true);
    let text = told(&["doctor"]);
    for head in ["processor", "instructions", "threads", "memory", "programs", "default model", "device cuda"]
    {
        assert!(text.lines().any(|line| line.starts_with(head)), "{head}: {text}");
    }
}
