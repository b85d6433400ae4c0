//! What makes room for what.

use super::*;

/// Room for a handful of snapshots of conversations of some hundred tokens, with states as heavy as those of a hundred
/// tokens' rows.
fn heavy() -> (StateLayout, PrefixCache) {
    let layout = StateLayout { snapshot_bytes: 2000, row_bytes: vec![20] };
    let options = CacheOptions { bytes: 60_000, ..CacheOptions::default() };
    (layout.clone(), PrefixCache::open(&options, options.bytes, layout, || [7; 32]).unwrap())
}

fn keep(cache: &mut PrefixCache, layout: &StateLayout, tokens: &[u32]) {
    let state = || Snapshot { window: 0, kept: Box::new(vec![0_u8; layout.snapshot_bytes]) };
    let rows = |range: Range<usize>| Rows {
        tokens: range.len(),
        kept: Box::new(vec![0_u8; range.len() * layout.row_bytes[0]]),
    };
    cache.insert(tokens, state, rows);
}

/// One request: uses what is there, leaves snapshots at some positions. Returns the tokens that had to be computed.
fn request(cache: &mut PrefixCache, layout: &StateLayout, tokens: &[u32], positions: &[usize]) -> usize {
    let found = cache.find(tokens, tokens.len() - 1).memory_tokens;
    if found > 0 {
        cache.load(&tokens[..found], 0).expect("it was found");
    }
    positions.iter().filter(|&&end| end > found).for_each(|&end| keep(cache, layout, &tokens[..end]));
    tokens.len() - found
}

/// Twenty turns of a conversation with short requests of nobody's interest between them. Returns the most tokens that a turn
/// had to compute, of which 25 are new and 20 the last message.
fn worst_turn(requests_between: u32) -> (usize, CacheStatus) {
    let (layout, mut cache) = heavy();
    let mut conversation: Vec<u32> = (0..600).collect();
    let (mut background, mut worst) = (1_000_000, 0);
    for turn in 0..20 {
        let before_tail = conversation.len() - 5;
        let computed = request(&mut cache, &layout, &conversation, &[200, 400, before_tail, conversation.len()]);
        worst = worst.max(if turn == 0 { 0 } else { computed });
        for _ in 0..requests_between {
            let other: Vec<u32> = (background..background + 30).collect();
            background += 1000;
            request(&mut cache, &layout, &other, &[25, 30]);
        }
        conversation.truncate(before_tail);
        conversation.extend((0..25).map(|i| 10_000 + turn * 100 + i));
    }
    (worst, cache.status())
}

#[test]
fn background_requests_do_not_push_a_conversation_out() {
    let (worst, status) = worst_turn(3);
    assert!(worst <= 45 && status.evictions > 50, "{worst} tokens, {status:?}");
    // Four times as much between two turns as there is room for: some of the last messages have to go, no more.
    let (worst, status) = worst_turn(30);
    assert!(worst <= 250 && status.evictions > 500, "{worst} tokens, {status:?}");
}

#[test]
fn a_conversation_that_nobody_continues_goes_in_the_end() {
    let (layout, mut cache) = heavy();
    let old: Vec<u32> = (0..600).collect();
    request(&mut cache, &layout, &old, &[200, 400, 595]);
    for other in 1..40 {
        let text: Vec<u32> = (0..500).map(|i| other * 1000 + i).collect();
        request(&mut cache, &layout, &text, &[200, 495]);
    }
    assert_eq!(cache.find(&old, 599).memory_tokens, 0);
}

#[test]
fn of_equals_the_one_that_was_not_used_goes() {
    let (layout, mut cache) = heavy();
    let text = |i: u32| (0..50).map(|t| i * 1000 + t).collect::<Vec<u32>>();
    let mut count = 0;
    while cache.status().evictions == 0 {
        keep(&mut cache, &layout, &text(count));
        count += 1;
        request(&mut cache, &layout, &[text(0), vec![9]].concat(), &[]);
    }
    assert!(cache.find(&text(0), 50).memory_tokens == 50 && cache.find(&text(1), 50).memory_tokens == 0);
}

#[test]
fn a_text_is_told_where_it_parts_from_what_is_remembered() {
    let (layout, mut cache) = heavy();
    let text: Vec<u32> = (0..100).collect();
    keep(&mut cache, &layout, &text);
    keep(&mut cache, &layout, &text[..40]);
    let check = |tokens: &[u32], memory: usize, common: usize, remembered: usize| {
        let found = cache.find(tokens, tokens.len() - 1);
        assert_eq!((found.memory_tokens, found.common_tokens, found.remembered_tokens), (memory, common, remembered));
    };
    check(&[&text[..], &[7, 7]].concat(), 100, 100, 100);
    check(&text, 40, 100, 100);
    check(&[&text[..60], &[7, 7]].concat(), 40, 60, 100);
    check(&[&text[..30], &[7, 7]].concat(), 0, 30, 100);
    check(&[7, 7], 0, 0, 100);
}
