//! The tree against a list.

use super::super::tree::{Match, Tree};
use super::*;
use std::collections::BTreeSet;

/// What a list of remembered prefixes has for a text.
fn expected(list: &BTreeSet<Vec<u32>>, tokens: &[u32], usable: usize) -> Match {
    let common = |text: &Vec<u32>| text.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let usable = |text: &&Vec<u32>| text.len() <= usable && tokens.starts_with(text);
    let common_tokens = list.iter().map(common).max().unwrap_or(0);
    Match {
        snapshot_tokens: list.iter().filter(usable).map(Vec::len).max().unwrap_or(0),
        common_tokens,
        remembered_tokens: list.iter().filter(|t| common(t) == common_tokens).map(Vec::len).max().unwrap_or(0),
    }
}

#[test]
fn a_tree_finds_what_a_list_does() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut tree = Tree::new(layout(), usize::MAX);
        let mut list = BTreeSet::new();
        for _ in 0..60 {
            let text = random.text(12);
            match random.below(8) {
                0 => {
                    tree.forget(&text);
                    list.retain(|known: &Vec<u32>| !text.starts_with(known));
                }
                1..=4 if tree.snapshot(&text).is_none() => {
                    tree.insert(&text, Arc::new(snapshot(&text)), |range| rows(&text, range));
                    list.insert(text);
                }
                _ => {
                    let usable = random.below(text.len() + 1);
                    let found = tree.find(&text, usable);
                    assert_eq!(found, expected(&list, &text, usable), "seed {seed}");
                    let prefix = &text[..found.snapshot_tokens];
                    if !prefix.is_empty() {
                        let from = random.below(prefix.len() + 1);
                        let state = tree.snapshot(prefix).expect("it was found");
                        check_state(prefix, from, (state, tree.rows(prefix, from..prefix.len())));
                    }
                    let positions: Vec<usize> = (1..=text.len()).filter(|&end| list.contains(&text[..end])).collect();
                    assert_eq!(tree.snapshots(&text), positions);
                }
            }
            tree.audit();
        }
        tree.clear();
        assert_eq!(tree.size(), (0, 0));
    }
}

#[test]
fn the_limit_holds_and_what_is_left_is_right() {
    let mut evictions = 0;
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut tree = Tree::new(layout(), 600 + random.below(4000));
        for _ in 0..80 {
            let text = random.text(30);
            if tree.can_hold(text.len()) && tree.snapshot(&text).is_none() {
                tree.insert(&text, Arc::new(snapshot(&text)), |range| rows(&text, range));
                assert!(tree.snapshot(&text).is_some(), "what was just put in is there");
            }
            if random.below(10) == 0 {
                tree.forget(&text);
                assert!(tree.snapshots(&text).is_empty());
            }
            tree.audit();
            let found = tree.find(&text, text.len()).snapshot_tokens;
            if found > 0 {
                let prefix = &text[..found];
                check_state(prefix, 0, (tree.snapshot(prefix).unwrap(), tree.rows(prefix, 0..found)));
            }
        }
        evictions += tree.evictions;
    }
    assert!(evictions > 1000, "{evictions}");
}

#[test]
fn what_is_too_large_is_not_kept() {
    let mut cache = cache(&CacheOptions { bytes: 1000, ..CacheOptions::default() });
    put(&mut cache, &[1; 1000]);
    assert_eq!((cache.status().entries, cache.status().bytes), (0, 0));
    let mut nothing = super::cache(&CacheOptions { bytes: 0, ..CacheOptions::default() });
    put(&mut nothing, &[1]);
    assert_eq!(nothing.status().entries, 0);
}
