//! What our scripts answer.

use std::time::Duration;

use super::{Busy, Loss, Who};

#[derive(Clone, Debug)]
pub enum Answer {
    Granted {
        fence: u64,
        /// Which server that was; empty where there is only one.
        run_id: Vec<u8>,
    },
    Busy(Box<Busy>),
    /// A newer request of ours was there first.
    Stale,
    /// The server may have forgotten what it granted, and does not vote for so long.
    Resting(Duration),
    Extended {
        run_id: Vec<u8>,
        /// The server may have forgotten what it granted to others.
        resting: bool,
    },
    Healed,
    Raised,
    /// The token that stands in the way.
    NotRaised(u64),
    Released,
    Lost(Loss),
    /// Turned into an error before anyone sees it.
    Unfit(String),
    /// The nap is over.
    Awake,
}

/// `None` for an answer that none of our scripts gives.
pub fn interpret(words: &[Vec<u8>]) -> Option<Answer> {
    let number = |at: usize| std::str::from_utf8(words.get(at)?).ok()?.parse::<i64>().ok();
    let millis = |at: usize| number(at).map(|n| u64::try_from(n).ok().map(Duration::from_millis));
    let fence = |at: usize| number(at).and_then(|n| u64::try_from(n).ok());
    Some(match words.first()?.as_slice() {
        b"granted" => Answer::Granted { fence: fence(1)?, run_id: words.get(2)?.clone() },
        b"busy" => {
            let info = words.get(5..)?;
            Answer::Busy(Box::new(Busy {
                place: usize::try_from(number(1)?).ok(),
                holder: Some(words.get(2)?.clone()).filter(|holder| !holder.is_empty()),
                expires_in: millis(3)?,
                held_for: millis(4)?,
                who: (!info.is_empty()).then(|| Who::from_fields(info)),
                ..Busy::default()
            }))
        }
        b"resting" => Answer::Resting(millis(1)??),
        b"stale" => Answer::Stale,
        b"extended" => Answer::Extended { run_id: words.get(1)?.clone(), resting: number(2)? > 0 },
        b"healed" => Answer::Healed,
        b"raised" => Answer::Raised,
        b"refused" => Answer::NotRaised(fence(1)?),
        b"released" => Answer::Released,
        b"expired" => Answer::Lost(Loss::Expired),
        b"foreign" => Answer::Lost(Loss::Foreign),
        b"twice" => {
            Answer::Unfit("the same server is listed twice (by another name, socket or database)".into())
        }
        b"replica" => Answer::Unfit("this server is a replica: name the primary".into()),
        b"other" => {
            let nodes = number(1)?;
            Answer::Unfit(format!(
                "the key is held as a lock over {nodes} server(s): everyone must name the same ones"
            ))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &[&str]) -> Option<Answer> {
        interpret(&words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
    }

    #[test]
    fn answers_are_understood_and_others_are_not() {
        assert!(matches!(answer(&["granted", "42", "ab"]), Some(Answer::Granted { fence: 42, .. })));
        assert!(matches!(answer(&["expired"]), Some(Answer::Lost(Loss::Expired))));
        assert!(
            matches!(answer(&["resting", "1500"]), Some(Answer::Resting(left)) if left.as_millis() == 1500)
        );
        for wrong in
            [&["granted"][..], &["granted", "x", ""], &["resting", "-1"], &["busy", "0"], &["?"], &[]]
        {
            assert!(answer(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_holder_tells_of_itself() {
        let Some(Answer::Busy(busy)) = answer(&["busy", "1", "c.1", "-1", "2000", "host", "web1"]) else {
            panic!("busy");
        };
        assert_eq!((busy.place, busy.expires_in), (Some(1), None));
        assert_eq!(busy.held_for, Some(Duration::from_secs(2)));
        assert_eq!(busy.who.unwrap().host, "web1");
    }
}
