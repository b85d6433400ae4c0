//! The cache directory: restarts, crashes, damage, strangers and the budget.

use super::super::file::file_bytes;
use super::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn options(dir: &Path) -> CacheOptions {
    CacheOptions { bytes: 1 << 20, dir: Some(dir.to_owned()), dir_bytes: 1 << 20 }
}

/// Puts snapshots of one text in, has them written, and ends the cache.
fn fill(dir: &Path, texts: &[(&[u32], &[usize])]) {
    let mut cache = cache(&options(dir));
    for (text, ends) in texts {
        ends.iter().for_each(|&end| put(&mut cache, &text[..end]));
        cache.save(text);
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let mut files: Vec<PathBuf> =
        folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect();
    files.sort();
    files
}

/// What a new cache over the directory has for a text, which must be right.
fn found(cache: &mut PrefixCache, text: &[u32]) -> usize {
    loop {
        let end = cache.find(text, text.len()).disk_tokens;
        let right = [0, end / 2, end].into_iter().all(|from| match cache.load(&text[..end], from) {
            Some(state) => {
                check_state(&text[..end], from, state);
                true
            }
            None => false,
        });
        if end == 0 || right {
            return end;
        }
    }
}

const TEXT: [u32; 60] = [5; 60];

#[test]
fn what_was_written_is_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let branch = [&TEXT[..30], &[9; 30]].concat();
    fill(dir.path(), &[(&TEXT, &[10, 20, 55]), (&branch, &[30, 58])]);
    let mut cache = cache(&options(dir.path()));
    assert_eq!((cache.status().entries, cache.status().disk_entries), (0, 5));
    assert_eq!(found(&mut cache, &TEXT), 55);
    assert_eq!(found(&mut cache, &branch), 58);
    assert_eq!(found(&mut cache, &[&TEXT[..25], &[1]].concat()), 20);
    // Parts of it in memory, the rest from files.
    put(&mut cache, &TEXT[..40]);
    assert_eq!(found(&mut cache, &TEXT), 55);
    assert_eq!(cache.find(&[&TEXT[..50], &[1]].concat(), 51).common_tokens, 50);
    // Nothing is written twice.
    let before = files(dir.path());
    cache.save(&TEXT);
    cache.settle();
    assert_eq!(files(dir.path()).len(), before.len() + 1, "the snapshot at 40 alone");
    assert_eq!(cache.status().disk_bytes, files(dir.path()).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>());
}

#[test]
fn damage_anywhere_is_noticed_and_costs_what_was_damaged() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), &[(&TEXT, &[10, 20, 55])]);
    let whole: Vec<(PathBuf, Vec<u8>)> =
        files(dir.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let mut lost = [0; 4];
    for (path, bytes) in &whole {
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(path, damaged).unwrap();
            let mut cache = cache(&options(dir.path()));
            let end = found(&mut cache, &TEXT);
            lost[[0, 10, 20, 55].iter().position(|&e| e == end).unwrap()] += 1;
            drop(cache);
            whole.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
        for cut in [0, 1, 100, bytes.len() - 1] {
            fs::write(path, &bytes[..cut]).unwrap();
            assert!(found(&mut cache(&options(dir.path())), &TEXT) < 55, "cut to {cut} bytes");
            whole.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
    }
    assert!(lost[3] == 0 && lost[..3].iter().all(|&count| count > 20), "{lost:?}");
    assert_eq!(found(&mut cache(&options(dir.path())), &TEXT), 55);
}

#[test]
fn a_file_that_vanishes_or_changes_under_a_running_cache_is_noticed() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), &[(&TEXT, &[10, 20, 55])]);
    let mut cache = cache(&options(dir.path()));
    let last = files(dir.path()).into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    fs::remove_file(&last).unwrap();
    assert_eq!(found(&mut cache, &TEXT), 20);
    assert_eq!(cache.status().disk_failures, 1);
    // What was lost can be written again.
    put(&mut cache, &TEXT[..55]);
    cache.save(&TEXT);
    cache.settle();
    assert!(last.exists());
}

#[test]
fn a_file_that_calls_itself_something_else_is_not_believed() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), &[(&TEXT, &[10])]);
    let other = [&[1; 10][..], &TEXT[10..]].concat();
    // The state of one text under the name of another, with sound checksums.
    let rows = vec![RowsAt { start: 0, rows: Arc::new(rows(&TEXT, 0..10)), tokens: 0..10 }];
    let (id, parent) = (super::super::file::id_of(&TEXT[..10]), [0; 32]);
    let snapshot = Arc::new(snapshot(&TEXT[..10]));
    let tokens = other[..10].to_vec();
    let draft = super::super::file::Draft { key: [7; 32], id, parent, start: 0, tokens, rows, snapshot };
    let mut bytes = Vec::new();
    draft.write(&layout(), &mut bytes).unwrap();
    fs::write(&files(dir.path())[0], bytes).unwrap();
    let mut cache = super::cache(&options(dir.path()));
    assert_eq!((found(&mut cache, &TEXT), found(&mut cache, &other)), (0, 0));
}

#[test]
fn strangers_files_are_left_alone_and_other_models_are_not_mixed_up() {
    let dir = TempDir::new().unwrap();
    fill(dir.path(), &[(&TEXT, &[10, 55])]);
    let folder = files(dir.path())[0].parent().unwrap().to_owned();
    let partial = folder.join("0123.99.partial");
    let copy = folder.join("copy.prefix");
    fs::copy(&files(dir.path())[0], &copy).unwrap();
    let strange = [folder.join("notes.prefix"), dir.path().join("notes.txt"), partial, copy];
    for path in &strange[..3] {
        fs::write(path, "mine").unwrap();
    }
    let other = PrefixCache::open(&options(dir.path()), 1 << 20, layout(), || [8; 32]).unwrap();
    assert_eq!(other.find(&TEXT, 60).disk_tokens, 0, "another model's");
    let mut cache = cache(&options(dir.path()));
    assert_eq!(found(&mut cache, &TEXT), 55);
    drop((cache, other));
    assert!(strange.iter().all(|path| path.exists()));
    let error =
        PrefixCache::open(&options(&strange[1]), 0, layout(), || [7; 32]).err().expect("a file is no directory");
    assert!(error.to_string().contains("notes.txt"), "{error}");
}

#[test]
fn the_budget_holds_over_models_and_the_oldest_go_first() {
    let dir = TempDir::new().unwrap();
    let size = |tokens| file_bytes(&layout(), tokens);
    let limit = 4 * size(50);
    let options = CacheOptions { dir_bytes: limit, ..options(dir.path()) };
    let text = |i: u32| vec![i; 50];
    let on_disk = |dir: &Path| files(dir).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
    {
        let mut other = PrefixCache::open(&options, 1 << 20, layout(), || [8; 32]).unwrap();
        put(&mut other, &text(100));
        other.save(&text(100));
    }
    let mut cache = cache(&options);
    assert_eq!(cache.status().disk_bytes, size(50));
    for i in 0..10 {
        put(&mut cache, &text(i));
        cache.save(&text(i));
        cache.settle();
        assert!(on_disk(dir.path()) <= limit && cache.status().disk_bytes == on_disk(dir.path()));
        if i >= 2 {
            // Used again and again: it stays.
            assert!(cache.disk.as_mut().unwrap().load(&text(2), 0).is_some());
        }
    }
    let disk = cache.disk.as_ref().unwrap();
    let there: Vec<u32> = (0..10).filter(|&i| disk.find(&text(i), 50).snapshot_tokens == 50).collect();
    assert_eq!(there, [2, 7, 8, 9], "the other model's went first");
    drop(cache);
    // A smaller budget at the next start.
    let cache = super::cache(&CacheOptions { dir_bytes: size(50), ..options });
    assert_eq!((cache.status().disk_entries, cache.status().disk_bytes), (1, size(50)));
}

#[test]
fn random_texts_survive_random_restarts() {
    for seed in 0..20 {
        let dir = TempDir::new().unwrap();
        let mut random = Random(seed);
        let options = CacheOptions { bytes: 4000, dir_bytes: 8000, ..options(dir.path()) };
        let mut cache = cache(&options);
        for _ in 0..40 {
            let text = random.text(40);
            match random.below(6) {
                0 => {
                    drop(cache);
                    cache = super::cache(&options);
                }
                1 => cache.forget(&text),
                2 | 3 => {
                    put(&mut cache, &text[..1 + random.below(text.len())]);
                    put(&mut cache, &text);
                    cache.save(&text);
                }
                _ => drop(found(&mut cache, &text)),
            }
            if random.below(3) == 0 {
                cache.settle();
                assert!(files(dir.path()).iter().map(|f| f.metadata().unwrap().len()).sum::<u64>() <= 8000);
            }
        }
    }
}
