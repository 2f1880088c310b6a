//! What our scripts answer.

use std::str::FromStr;
use std::time::Duration;

use super::{Busy, Loss, Who};

#[derive(Clone, Debug)]
pub enum Answer {
    Granted {
        /// One for each key.
        fences: Vec<u64>,
        /// One for each key, or none.
        slots: Vec<u32>,
        /// Which server that was; empty where there is only one.
        run_id: Vec<u8>,
    },
    Busy(Box<Busy>),
    /// A process that we run under is in the way.
    Nested,
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
    /// The tokens here, of which one stands in the way.
    NotRaised(Vec<u64>),
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
    Some(match words.first()?.as_slice() {
        b"granted" => Answer::Granted {
            run_id: words.get(1)?.clone(),
            fences: numbers(words.get(2)?)?,
            slots: numbers(words.get(3)?)?,
        },
        b"busy" => {
            let info = words.get(7..)?;
            Answer::Busy(Box::new(Busy {
                key: usize::try_from(number(1)?).ok()?,
                place: usize::try_from(number(2)?).ok(),
                holder: Some(words.get(3)?.clone()).filter(|holder| !holder.is_empty()),
                expires_in: millis(4)?,
                held_for: millis(5)?,
                others: usize::try_from(number(6)?).ok()?,
                ended: info.chunks_exact(2).any(|pair| pair[0] == b"ended"),
                who: (!info.is_empty()).then(|| Who::from_fields(info)),
                sitting_out: Vec::new(),
            }))
        }
        b"nested" => Answer::Nested,
        b"resting" => Answer::Resting(millis(1)??),
        b"stale" => Answer::Stale,
        b"extended" => Answer::Extended { run_id: words.get(1)?.clone(), resting: number(2)? > 0 },
        b"healed" => Answer::Healed,
        b"raised" => Answer::Raised,
        b"refused" => Answer::NotRaised(numbers(words.get(1)?)?),
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
        b"slots" => Answer::Unfit(match number(1)? {
            0 => "the key is held without --slots: everyone must use it the same way".into(),
            slots => format!("the key is held with --slots {slots}: everyone must give the same number"),
        }),
        _ => return None,
    })
}

/// "7 8"
fn numbers<T: FromStr>(text: &[u8]) -> Option<Vec<T>> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &[&str]) -> Option<Answer> {
        interpret(&words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>())
    }

    #[test]
    fn answers_are_understood_and_others_are_not() {
        let Some(Answer::Granted { fences, slots, .. }) = answer(&["granted", "ab", "42 43", "0 7"]) else {
            panic!("granted");
        };
        assert_eq!((fences, slots), (vec![42, 43], vec![0, 7]));
        assert!(matches!(answer(&["expired"]), Some(Answer::Lost(Loss::Expired))));
        assert!(
            matches!(answer(&["resting", "1500"]), Some(Answer::Resting(left)) if left.as_millis() == 1500)
        );
        for wrong in
            [&["granted"][..], &["granted", "ab", "x", ""], &["resting", "-1"], &["busy", "0"], &["?"], &[]]
        {
            assert!(answer(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_holder_tells_of_itself() {
        let Some(Answer::Busy(busy)) = answer(&["busy", "1", "2", "c.1", "-1", "2000", "3", "host", "web1"])
        else {
            panic!("busy");
        };
        assert_eq!((busy.key, busy.place, busy.expires_in, busy.others), (1, Some(2), None, 3));
        assert_eq!(busy.held_for, Some(Duration::from_secs(2)));
        assert_eq!(busy.who.unwrap().host, "web1");
    }
}
