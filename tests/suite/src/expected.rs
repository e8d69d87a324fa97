//! The hand-written tables of expected answers.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::probe::Document;
use crate::programs::repository;

/// Compares a document with `tests/expected/syscalls-<tier>.tsv`; returns each disagreement.
pub fn disagreements(tier: &str, document: &Document) -> Result<Vec<String>> {
    let name = format!("syscalls-{tier}.tsv");
    let table = fs::read_to_string(repository().join("tests/expected").join(&name))
        .with_context(|| name.clone())?;
    let answers = document.syscalls.as_ref().context("no answers")?;
    let cases = document.cases.as_ref().context("no cases")?;
    let (mut wrong, mut numbers) = (Vec::new(), 0);
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [number, call, expected] = fields.as_slice() else {
            wrong.push(format!("{name}: {line:?} has not three fields"));
            continue;
        };
        let answer = match number.parse::<usize>() {
            Ok(number) => {
                numbers += 1;
                answers.native.get(number)
            }
            Err(_) => cases.get(*call),
        };
        let answer = answer.map_or("absent", String::as_str);
        if !agrees(expected, answer) {
            wrong.push(format!(
                "{number} {call}: expected {expected}, got {answer}"
            ));
        }
    }
    ensure!(numbers == 501, "{name} has {numbers} numbers");
    wrong.extend(foreign(&answers.x32, "x32", "ENOSYS"));
    wrong.extend(foreign(&answers.i386, "i386", "killed"));
    Ok(wrong)
}

fn agrees(expected: &str, answer: &str) -> bool {
    match expected.split_once('=') {
        Some(("allow", errno)) => answer == errno,
        Some(_) => false,
        None if expected == "unfiltered" => ["ENOSYS", "ENXIO", "signal:4"].contains(&answer),
        None if expected == "allow" => !["EPERM", "ENOSYS", "killed", "absent"].contains(&answer),
        None => answer == expected,
    }
}

fn foreign(answers: &[String], form: &str, expected: &str) -> Vec<String> {
    let wrong = answers
        .iter()
        .enumerate()
        .filter(|(_, answer)| answer.as_str() != expected && answer.as_str() != "skipped");
    let mut lines: Vec<String> = wrong
        .map(|(number, answer)| format!("{form} {number}: {answer}"))
        .collect();
    if answers.len() != 501 {
        lines.push(format!("{form}: {} answers", answers.len()));
    }
    lines
}
