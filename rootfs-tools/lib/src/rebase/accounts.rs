//! `passwd`, `group` and their shadows: three texts become one, entry by entry.

use std::collections::BTreeMap;

/// The files, relative to the root, and whether their third field is an id.
pub(crate) const FILES: [(&str, Fields); 6] = [
    ("etc/passwd", Fields::Passwd),
    ("etc/group", Fields::Group),
    ("etc/shadow", Fields::Plain),
    ("etc/gshadow", Fields::Plain),
    ("etc/subuid", Fields::Plain),
    ("etc/subgid", Fields::Plain),
];

/// What the fields of an entry mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fields {
    /// The third is an id.
    Passwd,
    /// The third is an id, the fourth a list of members.
    Group,
    /// Nothing that matters here.
    Plain,
}

/// One merged file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// The whole text.
    pub(crate) text: String,
    /// Names that were added or changed in the layer.
    pub(crate) kept: Vec<String>,
    /// What a person has to look at.
    pub(crate) collisions: Vec<String>,
}

/// Brings what the layer changed of `old`, as `own` has it, into `new`. Ids that the layer's files
/// have stay what they are.
pub(crate) fn merge(old: &str, own: &str, new: &str, fields: Fields) -> Merged {
    let before = entries(old);
    let mut changed: BTreeMap<&str, &str> = entries(own)
        .into_iter()
        .filter(|(name, line)| before.get(name) != Some(line))
        .collect();
    let mut merged = Merged {
        kept: changed.keys().map(|name| (*name).to_owned()).collect(),
        ..Merged::default()
    };
    let mut lines: Vec<String> = Vec::new();
    for line in new.lines() {
        match changed.remove(name(line)) {
            Some(own) => lines.push(replace(line, own, fields, &mut merged.collisions)),
            None => lines.push(line.to_owned()),
        }
    }
    let order = own.lines().filter(|line| changed.contains_key(name(line)));
    lines.extend(order.map(str::to_owned));
    if fields != Fields::Plain {
        shared_ids(&lines, &mut merged.collisions);
        moved_ids(own, new, &merged.kept, &mut merged.collisions);
    }
    for line in lines {
        merged.text.push_str(&line);
        merged.text.push('\n');
    }
    merged
}

/// The layer's entry in place of the new base's; the members of both for a group.
fn replace(new: &str, own: &str, fields: Fields, collisions: &mut Vec<String>) -> String {
    if fields != Fields::Plain && id(new) != id(own) {
        collisions.push(format!(
            "{} is {} in the layer and {} in the new base; {} is kept",
            name(own),
            id(own),
            id(new),
            id(own)
        ));
    }
    if fields != Fields::Group {
        return own.to_owned();
    }
    let members = |line: &str| -> Vec<String> {
        let list = line.splitn(4, ':').nth(3).unwrap_or_default();
        list.split(',')
            .filter(|member| !member.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let mut all = members(own);
    for member in members(new) {
        if !all.contains(&member) {
            all.push(member);
        }
    }
    let head: Vec<&str> = own.splitn(4, ':').take(3).collect();
    format!("{}:{}", head.join(":"), all.join(","))
}

fn shared_ids(lines: &[String], collisions: &mut Vec<String>) {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines {
        names.entry(id(line)).or_default().push(name(line));
    }
    for (id, names) in names {
        if names.len() > 1 && !id.is_empty() {
            collisions.push(format!("id {id} is shared by {}", names.join(", ")));
        }
    }
}

/// Names that both bases have with different ids: files of the layer may belong to the old one.
fn moved_ids(own: &str, new: &str, kept: &[String], collisions: &mut Vec<String>) {
    let new = entries(new);
    for (name, line) in entries(own) {
        if let Some(other) = new.get(name)
            && id(other) != id(line)
            && !kept.iter().any(|kept| kept == name)
        {
            collisions.push(format!(
                "{name} was {} and is {} in the new base",
                id(line),
                id(other)
            ));
        }
    }
}

fn entries(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| (name(line), line))
        .collect()
}

fn name(line: &str) -> &str {
    line.split(':').next().unwrap_or_default()
}

fn id(line: &str) -> &str {
    line.split(':').nth(2).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_users_keep_their_ids() {
        let old = "root:x:0:0::/root:/bin/sh\ngames:x:5:60::/:/bin/false\n";
        let own = "root:x:0:0::/root:/bin/bash\ngames:x:5:60::/:/bin/false\npostgres:x:101:102::/:/bin/sh\n";
        let new =
            "root:x:0:0::/root:/bin/sh\ngames:x:6:60::/:/bin/false\nother:x:101:1::/:/bin/sh\n";
        let merged = merge(old, own, new, Fields::Passwd);
        assert_eq!(
            merged.text,
            "root:x:0:0::/root:/bin/bash\ngames:x:6:60::/:/bin/false\nother:x:101:1::/:/bin/sh\npostgres:x:101:102::/:/bin/sh\n"
        );
        assert_eq!(merged.kept, ["postgres", "root"]);
        assert_eq!(
            merged.collisions,
            [
                "id 101 is shared by other, postgres",
                "games was 5 and is 6 in the new base"
            ]
        );
    }

    #[test]
    fn a_group_has_the_members_of_both() {
        let merged = merge("g:x:9:\n", "g:x:9:me\n", "g:x:8:you\n", Fields::Group);
        assert_eq!(merged.text, "g:x:9:me,you\n");
        assert_eq!(
            merged.collisions,
            ["g is 9 in the layer and 8 in the new base; 9 is kept"]
        );
        let same = merge("a:1\n", "a:1\n", "a:2\nb:3\n", Fields::Plain);
        assert_eq!((same.text.as_str(), same.kept.len()), ("a:2\nb:3\n", 0));
    }
}
