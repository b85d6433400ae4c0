//! The prefixes in memory: a tree over tokens, whose nodes hold the cache rows of their own tokens and, where a snapshot
//! was taken, the state at their end.
//!
//! Texts with a common beginning share its rows. A node that has neither a snapshot nor children goes, so rows live as
//! long as a snapshot that needs them. Which snapshot makes room for another is told in [`super`].

use super::state::{Rows, RowsAt, Snapshot, StateLayout};
use std::ops::Range;
use std::sync::Arc;

type NodeId = usize;
const ROOT: NodeId = 0;
/// What a node costs beside its tokens, rows and snapshot: a generous guess.
const NODE_BYTES: usize = 256;

struct Node {
    parent: NodeId,
    children: Vec<NodeId>,
    /// Tokens between the parent's end and this one's.
    tokens: Vec<u32>,
    rows: Arc<Rows>,
    /// Tokens from the root to here.
    end: usize,
    entry: Option<Entry>,
}

struct Entry {
    snapshot: Arc<Snapshot>,
    /// The tree's clock when it was last used.
    base: u64,
    /// The number of that use.
    used: u64,
}

/// How far a sequence leads into the tree.
struct Walk {
    /// Nodes whose tokens it has, the root first.
    path: Vec<NodeId>,
    /// The child of the last of them that shares a beginning with the rest, and of how many tokens.
    partial: Option<(NodeId, usize)>,
}

/// What the tree has for a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    /// Tokens before the deepest snapshot that can be used; 0 is none.
    pub snapshot_tokens: usize,
    /// Tokens that the sequence shares with what is here.
    pub common_tokens: usize,
    /// Tokens of the longest text here that shares as many.
    pub remembered_tokens: usize,
}

pub(super) struct Tree {
    layout: StateLayout,
    limit_bytes: usize,
    bytes: usize,
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    entries: usize,
    /// Rises to the credit of every entry that makes room.
    clock: u64,
    uses: u64,
    pub evictions: u64,
}

impl Tree {
    pub fn new(layout: StateLayout, limit_bytes: usize) -> Self {
        let mut tree = Self {
            layout,
            limit_bytes,
            bytes: 0,
            nodes: Vec::new(),
            free: Vec::new(),
            entries: 0,
            clock: 0,
            uses: 0,
            evictions: 0,
        };
        tree.clear();
        tree
    }

    pub fn clear(&mut self) {
        let root =
            Node { parent: ROOT, children: Vec::new(), tokens: Vec::new(), rows: Arc::default(), end: 0, entry: None };
        self.nodes = vec![Some(root)];
        self.free.clear();
        (self.bytes, self.entries) = (0, 0);
    }

    /// Snapshots, and the bytes of everything.
    pub fn size(&self) -> (usize, usize) {
        (self.entries, self.bytes)
    }

    /// What is here for `tokens`, of which a snapshot may cover the first `usable` at most.
    pub fn find(&self, tokens: &[u32], usable: usize) -> Match {
        let walk = self.walk(tokens);
        let &last = walk.path.last().expect("the root");
        let (below, matched) = walk.partial.unwrap_or((last, 0));
        Match {
            snapshot_tokens: self.deepest(&walk, usable).map_or(0, |id| self.node(id).end),
            common_tokens: self.node(last).end + matched,
            remembered_tokens: self.longest_below(below),
        }
    }

    /// Positions of the snapshots on the way of `tokens`, ascending.
    pub fn snapshots(&self, tokens: &[u32]) -> Vec<usize> {
        let nodes = self.walk(tokens).path.into_iter().map(|id| self.node(id));
        nodes.filter(|node| node.entry.is_some()).map(|node| node.end).collect()
    }

    /// The snapshot after exactly `tokens`, marked as used.
    pub fn snapshot(&mut self, tokens: &[u32]) -> Option<Arc<Snapshot>> {
        let walk = self.walk(tokens);
        let id = self.deepest(&walk, tokens.len()).filter(|&id| self.node(id).end == tokens.len())?;
        self.uses += 1;
        let (base, used) = (self.clock, self.uses);
        let entry = self.node_mut(id).entry.as_mut().expect("a node with a snapshot");
        (entry.base, entry.used) = (base, used);
        Some(Arc::clone(&entry.snapshot))
    }

    /// The rows of `range` as far as they are here, in order.
    pub fn rows(&self, tokens: &[u32], range: Range<usize>) -> Vec<RowsAt> {
        let walk = self.walk(tokens);
        let ids = walk.path.iter().copied().chain(walk.partial.map(|(id, _)| id));
        let matched = walk.partial.map_or(usize::MAX, |(id, matched)| self.node(id).start() + matched);
        ids.filter_map(|id| {
            let node = self.node(id);
            let (from, to) = (range.start.max(node.start()), range.end.min(node.end).min(matched));
            (from < to).then(|| RowsAt { start: node.start(), rows: Arc::clone(&node.rows), tokens: from..to })
        })
        .collect()
    }

    /// Whether a snapshot after so many tokens can be kept, if all else makes room.
    pub fn can_hold(&self, tokens: usize) -> bool {
        tokens > 0 && self.entry_bytes(tokens) <= self.limit_bytes
    }

    /// Bytes of a snapshot and of `tokens` tokens before it.
    fn entry_bytes(&self, tokens: usize) -> usize {
        self.layout.snapshot_bytes + tokens * (4 + self.layout.token_bytes()) + 2 * NODE_BYTES
    }

    /// Remembers the state after `tokens`, of which there is no snapshot yet, and which can be held; `rows` reads rows that
    /// are not here.
    pub fn insert(&mut self, tokens: &[u32], snapshot: Arc<Snapshot>, rows: impl FnOnce(Range<usize>) -> Rows) {
        assert!(self.can_hold(tokens.len()) && snapshot.kept.bytes() == self.layout.snapshot_bytes);
        let walk = loop {
            let walk = self.walk(tokens);
            let from = self.node(*walk.path.last().expect("the root")).end + walk.partial.map_or(0, |p| p.1);
            if self.bytes + self.entry_bytes(tokens.len() - from) <= self.limit_bytes {
                break walk;
            }
            self.evict();
        };
        let mut id = *walk.path.last().expect("the root");
        if let Some((child, matched)) = walk.partial {
            id = self.split(child, matched);
        }
        let from = self.node(id).end;
        if from < tokens.len() {
            let rows = Arc::new(rows(from..tokens.len()));
            id = self.add(Node {
                parent: id,
                children: Vec::new(),
                tokens: tokens[from..].to_vec(),
                rows,
                end: tokens.len(),
                entry: None,
            });
        }
        self.bytes += snapshot.kept.bytes();
        self.entries += 1;
        self.uses += 1;
        let entry = Entry { snapshot, base: self.clock, used: self.uses };
        self.node_mut(id).entry = Some(entry);
    }

    /// Forgets every snapshot on the way of `tokens`.
    pub fn forget(&mut self, tokens: &[u32]) {
        for id in self.walk(tokens).path.into_iter().rev() {
            // One that had no snapshot itself has gone with the last one below it.
            if self.nodes[id].as_ref().is_some_and(|node| node.entry.is_some()) {
                self.remove_entry(id);
            }
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("a node of the tree")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("a node of the tree")
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes.len()).filter(|&id| self.nodes[id].is_some())
    }

    fn walk(&self, tokens: &[u32]) -> Walk {
        let mut path = vec![ROOT];
        loop {
            let node = self.node(*path.last().expect("the root"));
            let rest = &tokens[node.end..];
            let begins = |id: &&NodeId| self.node(**id).tokens.first() == rest.first();
            let Some(&child) = node.children.iter().find(begins) else {
                return Walk { path, partial: None };
            };
            let tokens = &self.node(child).tokens;
            let common = tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < tokens.len() {
                return Walk { path, partial: Some((child, common)) };
            }
            path.push(child);
        }
    }

    /// The deepest node of a walk with a snapshot and at most `usable` tokens.
    fn deepest(&self, walk: &Walk, usable: usize) -> Option<NodeId> {
        let fits = |id: &NodeId| self.node(*id).entry.is_some() && self.node(*id).end <= usable;
        walk.path.iter().copied().rev().find(fits)
    }

    fn longest_below(&self, id: NodeId) -> usize {
        let (mut longest, mut open) = (0, vec![id]);
        while let Some(id) = open.pop() {
            longest = longest.max(self.node(id).end);
            open.extend(&self.node(id).children);
        }
        longest
    }

    /// Puts a node between a node and its parent, after `at` tokens of it.
    fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        let layout = self.layout.clone();
        let node = self.node_mut(id);
        let (parent, start, count) = (node.parent, node.start(), node.tokens.len());
        let rest = node.tokens.split_off(at);
        let tokens = std::mem::replace(&mut node.tokens, rest);
        let rows = Arc::new(node.rows.copy(&layout, 0..at));
        node.rows = Arc::new(node.rows.copy(&layout, at..count));
        // The two parts together weigh what the one did.
        self.bytes -= tokens.len() * (4 + layout.token_bytes());
        self.node_mut(parent).children.retain(|&child| child != id);
        let middle = self.add(Node { parent, children: vec![id], tokens, rows, end: start + at, entry: None });
        self.node_mut(id).parent = middle;
        middle
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.bytes += node.tokens.len() * (4 + self.layout.token_bytes()) + NODE_BYTES;
        let parent = node.parent;
        let id = self.free.pop().unwrap_or(self.nodes.len());
        if id == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[id] = Some(node);
        self.node_mut(parent).children.push(id);
        id
    }

    fn remove_entry(&mut self, id: NodeId) {
        let entry = self.node_mut(id).entry.take().expect("a node with a snapshot");
        self.bytes -= entry.snapshot.kept.bytes();
        self.entries -= 1;
        let mut id = id;
        while id != ROOT && self.node(id).entry.is_none() && self.node(id).children.is_empty() {
            let node = self.nodes[id].take().expect("a node of the tree");
            self.free.push(id);
            self.bytes -= node.tokens.len() * (4 + self.layout.token_bytes()) + NODE_BYTES;
            self.node_mut(node.parent).children.retain(|&child| child != id);
            id = node.parent;
        }
    }

    /// What an entry is worth at the moment: the tokens that would have to be computed again without it.
    fn worth(&self, id: NodeId) -> u64 {
        let mut before = self.node(id).parent;
        while before != ROOT && self.node(before).entry.is_none() {
            before = self.node(before).parent;
        }
        (self.node(id).end - self.node(before).end) as u64
    }

    /// Makes room: the entry with the least credit goes, of equals the one that was used longest ago.
    fn evict(&mut self) {
        let credit = |id: NodeId| self.node(id).entry.as_ref().map(|e| (e.base + self.worth(id), e.used, id));
        let least = self.ids().filter_map(credit).min();
        let (credit, _, id) = least.expect("something is remembered, as it fills the memory");
        self.clock = self.clock.max(credit);
        self.evictions += 1;
        self.remove_entry(id);
    }
}

impl Node {
    fn start(&self) -> usize {
        self.end - self.tokens.len()
    }
}

#[cfg(test)]
impl Tree {
    /// Checks that the tree is what it says: its links, its counts, and no node that nothing needs.
    pub fn audit(&self) {
        let (mut bytes, mut entries) = (0, 0);
        for id in self.ids() {
            let node = self.node(id);
            let mut firsts: Vec<u32> = node.children.iter().map(|&child| self.node(child).tokens[0]).collect();
            firsts.sort_unstable();
            firsts.dedup();
            assert_eq!(firsts.len(), node.children.len(), "children that begin alike");
            for &child in &node.children {
                assert_eq!((self.node(child).parent, self.node(child).start()), (id, node.end));
            }
            let rows = node.rows.kept.bytes();
            assert_eq!(rows, node.tokens.len() * self.layout.token_bytes());
            if id != ROOT {
                assert!(node.entry.is_some() || !node.children.is_empty(), "a node that nothing needs");
                bytes += NODE_BYTES + 4 * node.tokens.len() + rows;
            }
            if let Some(entry) = &node.entry {
                bytes += entry.snapshot.kept.bytes();
                entries += 1;
            }
        }
        assert_eq!((entries, bytes), self.size());
        assert!(bytes <= self.limit_bytes);
    }
}
