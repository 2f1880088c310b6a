//! Sorted sets, and the commands on them.

use super::reply::Reply;
use super::store::{Bytes, Outcome, SYNTAX, Store, index_range, integer, is, parse_int};

/// Members by score, then by bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SortedSet(pub(super) Vec<(f64, Bytes)>);

impl SortedSet {
    fn position(&self, member: &[u8]) -> Option<usize> {
        self.0.iter().position(|(_, other)| other == member)
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        self.position(member).map(|at| self.0[at].0)
    }

    fn insert(&mut self, score: f64, member: &[u8]) -> bool {
        let is_new = !self.remove(member);
        let at = self
            .0
            .partition_point(|(other, name)| *other < score || (*other == score && name.as_slice() < member));
        self.0.insert(at, (score, member.to_vec()));
        is_new
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        self.position(member).map(|at| self.0.remove(at)).is_some()
    }
}

/// A bound of a range of scores: `5`, `(5`, `-inf`, `+inf`.
fn score_bound(text: &[u8]) -> Result<(f64, bool), String> {
    let (is_exclusive, number) = match text.strip_prefix(b"(") {
        Some(number) => (true, number),
        None => (false, text),
    };
    let number = parse_float(number).ok_or("ERR min or max is not a float")?;
    Ok((number, is_exclusive))
}

fn is_between(score: f64, from: (f64, bool), to: (f64, bool)) -> bool {
    let above = if from.1 { score > from.0 } else { score >= from.0 };
    let below = if to.1 { score < to.0 } else { score <= to.0 };
    above && below
}

/// A bound of a range of names: `[name`, `(name`, `-`, `+`.
enum NameBound<'a> {
    First,
    Last,
    Name { name: &'a [u8], is_exclusive: bool },
}

fn name_bound(text: &[u8]) -> Result<NameBound<'_>, String> {
    match text.split_first() {
        Some((b'-', [])) => Ok(NameBound::First),
        Some((b'+', [])) => Ok(NameBound::Last),
        Some((b'[', name)) => Ok(NameBound::Name { name, is_exclusive: false }),
        Some((b'(', name)) => Ok(NameBound::Name { name, is_exclusive: true }),
        _ => Err("ERR min or max not valid string range item".into()),
    }
}

fn is_between_names(member: &[u8], from: &NameBound<'_>, to: &NameBound<'_>) -> bool {
    let above = match *from {
        NameBound::First => true,
        NameBound::Last => false,
        NameBound::Name { name, is_exclusive } => member > name || (member == name && !is_exclusive),
    };
    let below = match *to {
        NameBound::First => false,
        NameBound::Last => true,
        NameBound::Name { name, is_exclusive } => member < name || (member == name && !is_exclusive),
    };
    above && below
}

fn parse_float(text: &[u8]) -> Option<f64> {
    match text {
        b"-inf" => Some(f64::NEG_INFINITY),
        b"inf" | b"+inf" => Some(f64::INFINITY),
        text => std::str::from_utf8(text).ok()?.parse().ok().filter(|number: &f64| !number.is_nan()),
    }
}

fn format_score(score: f64) -> Bytes {
    if score.is_infinite() {
        return if score > 0.0 { b"inf".to_vec() } else { b"-inf".to_vec() };
    }
    assert!(score.fract() == 0.0 && score.abs() < 1e17, "{score}: the scripts use whole numbers");
    format!("{score:.0}").into_bytes()
}

/// Options such as WITHSCORES and LIMIT behind a range.
struct RangeOptions {
    with_scores: bool,
    offset: usize,
    count: usize,
}

fn range_options(mut words: &[Bytes]) -> Result<RangeOptions, String> {
    let mut options = RangeOptions { with_scores: false, offset: 0, count: usize::MAX };
    while let Some(word) = words.first() {
        if is(word, "WITHSCORES") {
            options.with_scores = true;
            words = &words[1..];
        } else if is(word, "LIMIT") && words.len() >= 3 {
            options.offset = usize::try_from(parse_int(&words[1])?).unwrap_or(usize::MAX);
            options.count = usize::try_from(parse_int(&words[2])?).unwrap_or(usize::MAX);
            words = &words[3..];
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(options)
}

fn members(chosen: impl Iterator<Item = (f64, Bytes)>, options: &RangeOptions) -> Reply {
    let mut list = Vec::new();
    for (score, member) in chosen.skip(options.offset).take(options.count) {
        list.push(member);
        if options.with_scores {
            list.push(format_score(score));
        }
    }
    Reply::bulks(list)
}

impl Store {
    pub(super) fn on_sorted_set(&mut self, name: &str, key: &[u8], args: &[Bytes]) -> Outcome {
        let empty = SortedSet::default();
        // Arguments are checked before the key's type, as Redis does.
        let set = || self.sorted(key).map(|set| set.unwrap_or(&empty));
        match (name, args) {
            ("ZCARD", []) => Ok(integer(set()?.0.len())),
            ("ZSCORE", [member]) => {
                Ok(set()?.score(member).map_or(Reply::Nil, |score| Reply::bulk(format_score(score))))
            }
            ("ZRANK", [member]) => Ok(set()?.position(member).map_or(Reply::Nil, integer)),
            ("ZCOUNT", [from, to]) => {
                let (from, to) = (score_bound(from)?, score_bound(to)?);
                Ok(integer(set()?.0.iter().filter(|(score, _)| is_between(*score, from, to)).count()))
            }
            ("ZRANGE", [from, to, rest @ ..]) => {
                let options = range_options(rest)?;
                parse_int(from)?;
                parse_int(to)?;
                let set = set()?;
                let range = index_range(set.0.len(), from, to)?;
                Ok(members(set.0[range].iter().cloned(), &options))
            }
            ("ZRANGEBYSCORE", [from, to, rest @ ..]) => {
                let (options, from, to) = (range_options(rest)?, score_bound(from)?, score_bound(to)?);
                let chosen = set()?.0.iter().filter(|(score, _)| is_between(*score, from, to)).cloned();
                Ok(members(chosen, &options))
            }
            ("ZRANGEBYLEX", [from, to, rest @ ..]) => {
                let (options, from, to) = (range_options(rest)?, name_bound(from)?, name_bound(to)?);
                let chosen = set()?.0.iter().filter(|(_, name)| is_between_names(name, &from, &to));
                Ok(members(chosen.cloned(), &options))
            }
            ("ZLEXCOUNT", [from, to]) => {
                let (from, to) = (name_bound(from)?, name_bound(to)?);
                Ok(integer(set()?.0.iter().filter(|(_, name)| is_between_names(name, &from, &to)).count()))
            }
            ("ZADD", pairs) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                let scores: Result<Vec<f64>, String> = pairs
                    .chunks_exact(2)
                    .map(|pair| parse_float(&pair[0]).ok_or("ERR value is not a valid float".into()))
                    .collect();
                let (scores, set) = (scores?, self.sorted_mut(key)?);
                let added = pairs.chunks_exact(2).zip(scores);
                let added = added.filter(|(pair, score)| set.insert(*score, &pair[1])).count();
                Ok(integer(added))
            }
            ("ZREM", names @ [_, ..]) => {
                if self.sorted(key)?.is_none() {
                    return Ok(Reply::Int(0));
                }
                let set = self.sorted_mut(key)?;
                let removed = names.iter().filter(|member| set.remove(member)).count();
                self.drop_if_empty(key);
                Ok(integer(removed))
            }
            ("ZADD", _) => Err(SYNTAX.into()),
            _ => panic!("the virtual server does not have this form of {name}: {args:?}"),
        }
    }
}
