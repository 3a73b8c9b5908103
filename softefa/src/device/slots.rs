//! A table of objects by number. Numbers are reused late and with a new generation, so that a stale number or
//! key refers to no object for as long as possible.

use std::collections::VecDeque;

/// A freed number is not reused until more than this many are free, or every number up to the limit has been used.
const MIN_FREE: usize = 64;

/// Objects by number, from 1. Number 0 is not used, so that a zeroed field refers to no object.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u16>,
    limit: usize,
    live: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u16,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// An empty table for `limit` objects, at most 65,535.
    pub(crate) fn new(limit: usize) -> Self {
        let unused = Slot { generation: 0, value: None };
        Self { slots: vec![unused], free: VecDeque::new(), limit: limit.min(usize::from(u16::MAX)), live: 0 }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The number of objects.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Inserts the object that `make` returns for its number and generation. Returns the number, or `None` if
    /// the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u16, u16) -> T) -> Option<u16> {
        let at_limit = self.slots.len() > self.limit;
        let number = match self.free.front() {
            Some(number) if at_limit || self.free.len() > MIN_FREE => {
                let number = *number;
                self.free.pop_front();
                number
            }
            _ if at_limit => return None,
            _ => {
                self.slots.push(Slot { generation: 1, value: None });
                (self.slots.len() - 1) as u16
            }
        };
        let slot = &mut self.slots[usize::from(number)];
        slot.value = Some(make(number, slot.generation));
        self.live += 1;
        Some(number)
    }

    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&T> {
        self.slots.get(usize::from(number))?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut T> {
        self.slots.get_mut(usize::from(number))?.value.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<T> {
        let slot = self.slots.get_mut(usize::from(number))?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(number);
        self.live -= 1;
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        self.iter_from(0)
    }

    /// The objects whose number is at least `first`, by number.
    pub(crate) fn iter_from(&self, first: u16) -> impl Iterator<Item = (u16, &T)> {
        let numbered = self.slots.iter().enumerate().skip(first.into());
        numbered.filter_map(|(number, slot)| Some((number as u16, slot.value.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        let numbered = self.slots.iter_mut().enumerate();
        numbered.filter_map(|(number, slot)| Some((number as u16, slot.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_number_has_another_generation() {
        let mut slots = Slots::new(1);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let number = slots.insert_with(|number, generation| (number, generation)).unwrap();
            seen.push(slots.remove(number).unwrap());
        }
        assert_eq!(seen, [(1, 1), (1, 2), (1, 3)]);
    }

    #[test]
    fn a_freed_number_is_not_reused_while_the_table_can_grow() {
        let mut slots = Slots::new(10);
        let first = slots.insert_with(|_, _| ()).unwrap();
        slots.remove(first);
        assert_ne!(slots.insert_with(|_, _| ()), Some(first));
    }

    #[test]
    fn a_full_table_refuses_an_insert_until_one_object_is_removed() {
        let mut slots = Slots::new(2);
        assert!(slots.insert_with(|_, _| ()).is_some());
        assert!(slots.insert_with(|_, _| ()).is_some());
        assert_eq!(slots.insert_with(|_, _| ()), None);
        slots.remove(1);
        assert_eq!(slots.insert_with(|_, _| ()), Some(1));
    }
}
