//! A table whose entries keep their tokens.
//!
//! The event loop polls many descriptors at once and then handles their events one after the other. Handling an event
//! may remove an entry that a later event of the same poll belongs to. A token is never used for a second entry, so the
//! later event finds no entry instead of the wrong one.

use std::collections::BTreeMap;
use std::marker::PhantomData;

/// Identifies one entry of a [`Table`], also after it was removed.
pub(crate) struct Token<T> {
    number: u64,
    entry: PhantomData<fn() -> T>,
}

// Derived implementations would require `T` to have the same traits.
impl<T> Clone for Token<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Token<T> {}

impl<T> PartialEq for Token<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> std::fmt::Debug for Token<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}", self.number)
    }
}

/// Entries in the order in which they were inserted.
pub(crate) struct Table<T> {
    entries: BTreeMap<u64, T>,
    /// The number of the next token. 64 bits do not wrap around in the life of a pod.
    next: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), next: 0 }
    }
}

impl<T> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut table = Self::default();
        for entry in entries {
            table.insert(entry);
        }
        table
    }
}

impl<T> Table<T> {
    /// Adds an entry under a token that no entry had before.
    pub(crate) fn insert(&mut self, entry: T) -> Token<T> {
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, entry);
        token(number)
    }

    /// The entry with this token unless it was removed.
    pub(crate) fn get(&self, token: Token<T>) -> Option<&T> {
        self.entries.get(&token.number)
    }

    /// The entry with this token unless it was removed.
    pub(crate) fn get_mut(&mut self, token: Token<T>) -> Option<&mut T> {
        self.entries.get_mut(&token.number)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, token: Token<T>) -> Option<T> {
        self.entries.remove(&token.number)
    }

    /// Removes the entries for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        self.entries.retain(|_, entry| keep(entry));
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The entries with their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token<T>, &T)> {
        self.entries.iter().map(|(number, entry)| (token(*number), entry))
    }

    /// The entries.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }

    /// The entries.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut()
    }

    /// The tokens of all entries, for a loop that changes the table.
    pub(crate) fn tokens(&self) -> Vec<Token<T>> {
        self.entries.keys().map(|number| token(*number)).collect()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn token<T>(number: u64) -> Token<T> {
    Token { number, entry: PhantomData }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_finds_its_own_entry_or_none() {
        let mut table: Table<&str> = ["a", "b", "c"].into_iter().collect();
        let [a, b, c] = table.tokens()[..] else { panic!("three entries") };
        assert_eq!(table.remove(b), Some("b"));
        assert_eq!((table.get(a), table.get(b), table.get(c)), (Some(&"a"), None, Some(&"c")));
        let d = table.insert("d");
        assert_eq!(table.get(b), None, "the token of a removed entry stays unused");
        assert!(b != d && table.remove(b).is_none() && table.get_mut(b).is_none());
        assert_eq!(table.values().copied().collect::<Vec<_>>(), ["a", "c", "d"], "in the order of insertion");
    }

    /// Events are handled in batches: an event whose entry was removed and replaced meanwhile must not reach the new
    /// entry.
    #[test]
    fn stale_events_do_not_reach_new_entries() {
        let mut table = Table::default();
        let mut pending = Vec::new();
        for round in 0..100 {
            pending.push((table.insert(round), round));
            if round % 3 == 0 {
                table.clear();
            } else {
                table.retain(|entry| *entry % 2 == 0);
            }
            for (token, inserted) in &pending {
                assert!(table.get(*token).is_none_or(|entry| entry == inserted), "{token:?}");
            }
        }
    }
}
