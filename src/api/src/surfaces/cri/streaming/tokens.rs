//! The tokens of streaming URLs. A token is the only secret of its session: 128 random bits, valid once and for a
//! minute.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gantry_model::id::hex;
use tonic::Status;

/// The time in which a token is valid.
pub(super) const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum tokens that are valid at a time.
pub(super) const MAX_TOKENS: usize = 1000;
/// Random bytes of a token.
const RANDOM_BYTES: usize = 16;

/// The tokens that are valid, each with the request of its session.
#[derive(Debug)]
pub(super) struct Tokens<T> {
    valid: Mutex<ValidTokens<T>>,
}

#[derive(Debug)]
struct ValidTokens<T> {
    requests: HashMap<String, T>,
    /// In the order of their ends. A token that was used is still here.
    ends: VecDeque<(Instant, String)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self { valid: Mutex::new(ValidTokens { requests: HashMap::new(), ends: VecDeque::new() }) }
    }
}

impl<T> Tokens<T> {
    /// Issues a token for a request.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if [`MAX_TOKENS`] are valid, and `INTERNAL` if the kernel has no random bytes.
    pub(super) fn issue(&self, request: T, now: Instant) -> Result<String, Status> {
        let mut valid = self.lock();
        valid.expire(now);
        if valid.requests.len() >= MAX_TOKENS {
            return Err(Status::resource_exhausted(format!(
                "{MAX_TOKENS} streaming URLs are unused, which is the limit: use some, or wait until they expire"
            )));
        }
        let token = random_token()?;
        valid.ends.push_back((now + TOKEN_LIFETIME, token.clone()));
        valid.requests.insert(token.clone(), request);
        Ok(token)
    }

    /// Takes the request of a token, which is invalid from now on. `None`: the token is unknown, was used or has
    /// expired, or its request is another one than `wanted`.
    pub(super) fn redeem(&self, token: &str, wanted: impl FnOnce(&T) -> bool, now: Instant) -> Option<T> {
        let mut valid = self.lock();
        valid.expire(now);
        if !valid.requests.get(token).is_some_and(wanted) {
            return None;
        }
        valid.requests.remove(token)
    }

    fn lock(&self) -> MutexGuard<'_, ValidTokens<T>> {
        self.valid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> ValidTokens<T> {
    /// Removes expired tokens, and used ones at the front of `ends`. A used token behind a valid one stays until the
    /// valid one goes, so `ends` holds at most the tokens that were issued in one lifetime.
    fn expire(&mut self, now: Instant) {
        while let Some((end, token)) = self.ends.front() {
            if *end > now && self.requests.contains_key(token) {
                return;
            }
            if let Some((_, token)) = self.ends.pop_front() {
                self.requests.remove(&token);
            }
        }
    }
}

fn random_token() -> Result<String, Status> {
    let bytes = gantry_host::random::bytes::<RANDOM_BYTES>();
    bytes.map(|bytes| hex(&bytes)).map_err(|error| Status::internal(format!("cannot make a token: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_valid_once_for_a_minute() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let token = tokens.issue('a', now).unwrap();
        assert_eq!((token.len(), token.bytes().all(|byte| byte.is_ascii_hexdigit())), (32, true));
        assert_eq!(tokens.redeem("0123", |_| true, now), None);
        assert_eq!(tokens.redeem(&token, |request| *request == 'b', now), None, "a token of another kind");
        assert_eq!(tokens.redeem(&token, |_| true, now), Some('a'));
        assert_eq!(tokens.redeem(&token, |_| true, now), None);
        let late = tokens.issue('c', now).unwrap();
        assert_eq!(tokens.redeem(&late, |_| true, now + TOKEN_LIFETIME), None);
    }

    #[test]
    fn valid_tokens_are_limited() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let all: Vec<String> = (0..MAX_TOKENS).map(|number| tokens.issue(number, now).unwrap()).collect();
        assert_eq!(tokens.issue(0, now).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert_eq!(tokens.redeem(&all[500], |_| true, now), Some(500));
        tokens.issue(0, now).unwrap();
        assert!(tokens.issue(0, now).is_err());
        tokens.issue(0, now + TOKEN_LIFETIME).unwrap();
        assert_eq!(tokens.lock().requests.len(), 1);
    }

    #[test]
    fn used_tokens_are_forgotten() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        for number in 0..3 * MAX_TOKENS {
            let token = tokens.issue(number, now).unwrap();
            assert!(tokens.redeem(&token, |_| true, now).is_some());
        }
        assert!(tokens.lock().ends.len() <= 1);
    }
}
