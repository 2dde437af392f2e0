//! Places: how many requests that take long are under way at once, of all clients and of each.
//!
//! No client takes the last place of the others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Which limit a client has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    OfAll(usize),
    OfOne(usize),
}

/// The places of one sort of requests.
#[derive(Debug)]
pub(crate) struct Places {
    all: usize,
    each: usize,
    /// By client, those that have one.
    taken: Mutex<HashMap<String, usize>>,
}

impl Places {
    pub(crate) fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { all, each, taken: Mutex::default() })
    }

    /// Takes a place, until it is dropped.
    pub(crate) fn take(self: &Arc<Self>, client: &str) -> Result<Place, Full> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.get(client).is_some_and(|places| *places >= self.each) {
            return Err(Full::OfOne(self.each));
        }
        if taken.values().sum::<usize>() >= self.all {
            return Err(Full::OfAll(self.all));
        }
        *taken.entry(client.to_owned()).or_default() += 1;
        Ok(Place { places: self.clone(), client: client.to_owned() })
    }
}

/// A place that a request has.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    client: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = taken.get_mut(&self.client) {
            *places -= 1;
            if *places == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_places_to_others_and_those_that_leave_are_forgotten() {
        let places = Places::new(5, 3);
        let mut ann: Vec<_> = (0..3).map(|_| places.take("ann").unwrap()).collect();
        assert_eq!(places.take("ann").unwrap_err(), Full::OfOne(3));
        let bob: Vec<_> = (0..2).map(|_| places.take("bob").unwrap()).collect();
        assert_eq!(places.take("bob").unwrap_err(), Full::OfAll(5));
        ann.pop();
        let again = places.take("bob").unwrap();
        drop((ann, bob, again));
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
