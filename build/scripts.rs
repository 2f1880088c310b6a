//! Assembles the Lua scripts: each carries what it uses of lua/include/, and nothing else.
//!
//! A script, or an include, names the includes that it needs in lines of the form `-- @include NAME`. An include is
//! a row of paragraphs, separated by blank lines. A paragraph defines local functions or variables; a script gets
//! those that it uses, directly or through others, because Redis creates every function anew in each call.
//!
//! The paragraphs are put where the line stands: in the middle of a script, so that what only the rest uses is not created if
//! the script has returned before; or at the beginning of a function or of a branch, so that they are created only when
//! it is entered. Constants are written where they are used, since a variable that functions refer to costs each of them.

#[path = "names.rs"]
mod names;

use std::collections::{BTreeMap, BTreeSet};

use names::{lexemes, tokens, undefined_name};

/// The texts of the includes by name.
pub type Includes = BTreeMap<String, String>;

/// The script as it is sent, without comments and indentation. Adds the names that it takes from includes to `used`.
pub fn assemble(script: &str, includes: &Includes, used: &mut BTreeSet<String>) -> Result<String, String> {
    let lines: Vec<&str> = script.lines().collect();
    let mut included = BTreeSet::new();
    let text = expand(&lines, BTreeSet::new(), includes, &mut included)?;
    // In a branch that includes it, the name would silently stand for another variable.
    if let Some(name) = lines.iter().flat_map(|line| definitions(line)).find(|name| included.contains(name)) {
        return Err(format!("`{name}` is defined by an include, too"));
    }
    used.extend(included);
    if let Some(name) = undefined_name(&text) {
        return Err(format!("`{name}` is not defined above its use; is an \"-- @include\" line missing?"));
    }
    Ok(with_literals(&text))
}

/// A block, which is the script, a paragraph of an include, or the inside of a function or a branch, with what it takes from
/// includes. `names` are defined around it.
fn expand(
    lines: &[&str],
    mut names: BTreeSet<String>,
    includes: &Includes,
    used: &mut BTreeSet<String>,
) -> Result<String, String> {
    let mut text = Vec::new();
    for section in sections(lines) {
        for paragraph in select(section, &names, includes)? {
            names.extend(definitions(paragraph));
            let lines: Vec<&str> = paragraph.lines().collect();
            text.push(expand(&lines, names.clone(), includes, used)?);
        }
        for part in parts(section) {
            text.push(match part {
                Part::Line(line) => strip(line),
                Part::Block(lines) => expand(lines, names.clone(), includes, used)?,
            });
        }
    }
    used.extend(names);
    text.retain(|part| !part.is_empty());
    Ok(text.join("\n"))
}

/// The parts of a block, each with its own includes at its beginning.
fn sections<'a>(lines: &'a [&'a str]) -> Vec<&'a [&'a str]> {
    let depth = lines.iter().find(|line| !line.trim().is_empty()).map_or(0, |line| depth(line));
    let mut starts = vec![0];
    let mut has_code = false;
    for (i, line) in lines.iter().enumerate() {
        if has_code && is_include(line) && self::depth(line) == depth {
            starts.push(i);
            has_code = false;
        }
        has_code |= !strip(line).is_empty();
    }
    starts.push(lines.len());
    starts.windows(2).map(|pair| &lines[pair[0]..pair[1]]).collect()
}

enum Part<'a> {
    Line(&'a str),
    /// Begins with includes of its own.
    Block(&'a [&'a str]),
}

fn parts<'a>(section: &'a [&'a str]) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut rest = section;
    while let [line, behind @ ..] = rest {
        parts.push(Part::Line(line));
        rest = behind;
        let is_deeper = |next: &&&str| next.trim().is_empty() || depth(next) > depth(line);
        let (block, after) = behind.split_at(behind.iter().take_while(is_deeper).count());
        let first = block.iter().find(|line| is_include(line) || !strip(line).is_empty());
        if !line.trim().is_empty() && first.is_some_and(|line| is_include(line)) {
            parts.push(Part::Block(block));
            rest = after;
        }
    }
    parts
}

fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_include(line: &str) -> bool {
    included(line).is_some()
}

fn included(line: &str) -> Option<&str> {
    line.trim().strip_prefix("-- @include ")
}

/// The paragraphs that the beginning of a section includes and the section uses, directly or through others, without those
/// whose names are defined already.
fn select<'a>(
    section: &[&str],
    names: &BTreeSet<String>,
    includes: &'a Includes,
) -> Result<Vec<&'a str>, String> {
    let mut order = Vec::new();
    for name in section.iter().take_while(|line| strip(line).is_empty()).filter_map(|line| included(line)) {
        resolve(name, includes, &mut Vec::new(), &mut order)?;
    }
    let mut wanted = own_names(section);
    let mut selected = Vec::new();
    // Backwards, as a definition stands above its uses.
    for name in order.into_iter().rev() {
        for paragraph in paragraphs(&includes[name]).into_iter().rev() {
            let defined = definitions(paragraph);
            if defined.is_empty() {
                return Err(format!("lua/include/{name}.lua: a paragraph defines nothing: {paragraph}"));
            }
            if defined.iter().any(|name| wanted.contains(name) && !names.contains(name)) {
                wanted.extend(own_names(&paragraph.lines().collect::<Vec<_>>()));
                selected.push(paragraph);
            }
        }
    }
    selected.reverse();
    Ok(selected)
}

/// The names in these lines, without those in blocks that include what they need themselves.
fn own_names(lines: &[&str]) -> BTreeSet<String> {
    let own = |part| match part {
        Part::Line(line) => Some(strip(line)),
        Part::Block(_) => None,
    };
    let text = parts(lines).into_iter().filter_map(own).collect::<Vec<_>>().join("\n");
    tokens(&text).into_iter().map(String::from).collect()
}

/// With each `local NAME = 5` or `local NAME = 'text'` left out, and its value where the name was.
fn with_literals(text: &str) -> String {
    let mut literals = BTreeMap::new();
    let code = text.lines().filter(|line| {
        match line.strip_prefix("local ").and_then(|rest| rest.split_once(" = ")) {
            Some((name, value)) if is_constant(name) && is_literal(value) => {
                literals.insert(name, value);
                false
            }
            _ => true,
        }
    });
    let code = code.collect::<Vec<_>>().join("\n");
    let mut before = "";
    let put = |lexeme| {
        let is_field = std::mem::replace(&mut before, lexeme) == ".";
        literals.get(lexeme).filter(|_| !is_field).copied().unwrap_or(lexeme)
    };
    lexemes(&code).into_iter().map(put).collect()
}

fn is_constant(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

fn is_literal(value: &str) -> bool {
    let is_number = value.chars().all(|c| c.is_ascii_digit() || c == 'e');
    let quotes = value.matches('\'').count();
    is_number || quotes == 2 && value.starts_with('\'') && value.ends_with('\'')
}

/// The names that an include defines, for the check that each is used by some script.
pub fn defined_in(include: &str) -> Vec<String> {
    paragraphs(include).into_iter().flat_map(definitions).collect()
}

/// An include and those that it needs: each once, behind those that it needs itself.
fn resolve<'a>(
    name: &str,
    includes: &'a Includes,
    above: &mut Vec<&'a str>,
    order: &mut Vec<&'a str>,
) -> Result<(), String> {
    let (name, text) =
        includes.get_key_value(name).ok_or_else(|| format!("there is no lua/include/{name}.lua"))?;
    if above.contains(&name.as_str()) {
        return Err(format!("lua/include/{name}.lua includes itself"));
    }
    if !order.contains(&name.as_str()) {
        above.push(name);
        for needed in text.lines().filter(|line| depth(line) == 0).filter_map(included) {
            resolve(needed, includes, above, order)?;
        }
        above.pop();
        order.push(name);
    }
    Ok(())
}

fn paragraphs(include: &str) -> Vec<&str> {
    include.split("\n\n").filter(|paragraph| !strip(paragraph).is_empty()).collect()
}

fn strip(text: &str) -> String {
    let code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.collect::<Vec<_>>().join("\n")
}

/// The names that the `local`s at the beginning of a paragraph define: `local function a(...)`, `local b, c = ...`.
fn definitions(paragraph: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in strip(paragraph).lines() {
        let Some(defined) = line.strip_prefix("local ") else { break };
        if let Some(function) = defined.strip_prefix("function ") {
            names.extend(tokens(function).first().map(ToString::to_string));
            break;
        }
        let left = defined.split('=').next().unwrap_or_default();
        names.extend(left.split(',').map(|name| name.trim().to_string()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn includes(texts: &[(&str, &str)]) -> Includes {
        texts.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    }

    fn assembled(script: &str, texts: &[(&str, &str)]) -> Result<String, String> {
        assemble(script, &includes(texts), &mut BTreeSet::new())
    }

    #[test]
    fn a_script_carries_what_it_uses_directly_or_through_others() {
        let a = "-- A.\n-- @include b\n\nlocal function twice(x)\n  return 2 * once(x)\nend\n\nlocal UNUSED = 1\n";
        let b = "local function once(x)\n  return x\nend\n\n-- No.\nlocal function never()\n  return twice\nend\n";
        assert_eq!(
            assembled("-- @include a\n\nreturn twice(1)\n", &[("a", a), ("b", b)]).unwrap(),
            "local function once(x)\nreturn x\nend\nlocal function twice(x)\nreturn 2 * once(x)\nend\nreturn twice(1)"
        );
    }

    #[test]
    fn each_include_comes_once() {
        let texts = [
            ("a", "-- @include c\n\nlocal a = c"),
            ("b", "-- @include c\n\nlocal b = c"),
            ("c", "local c = KEYS[1]"),
        ];
        let text = assembled("-- @include a\n-- @include b\nreturn a .. b", &texts).unwrap();
        assert_eq!(text, "local c = KEYS[1]\nlocal a = c\nlocal b = c\nreturn a .. b");
    }

    #[test]
    fn what_only_a_nested_function_needs_is_created_in_it() {
        let a = "local function often()\nend\n\nlocal function seldom()\n  often()\nend\n";
        let script = "-- @include a\n\nlocal function rare(x)\n  -- @include a\n  return seldom(x)\nend\n\n\
                      often()\nreturn rare(1)\n";
        assert_eq!(
            assembled(script, &[("a", a)]).unwrap(),
            "local function often()\nend\nlocal function rare(x)\nlocal function seldom()\noften()\nend\n\
             return seldom(x)\nend\noften()\nreturn rare(1)"
        );
        let outside = script.replace("return rare(1)", "return seldom(1) and rare(1)");
        let hoisted = assembled(&outside, &[("a", a)]).unwrap();
        assert_eq!(hoisted.matches("function seldom").count(), 1);
        let without = outside.replacen("-- @include a\n", "", 1);
        assert!(assembled(&without, &[("a", a)]).unwrap_err().contains("`often` is not defined"));
    }

    #[test]
    fn a_paragraph_may_include_in_its_branches_even_what_it_defines() {
        let a = "local function rare(x)\n  if x then\n    -- @include a\n    return seldom(rare)\n  end\nend\n\n\
                 local function seldom(f)\n  return f()\nend\n";
        assert_eq!(
            assembled("-- @include a\nreturn rare(1)\n", &[("a", a)]).unwrap(),
            "local function rare(x)\nif x then\nlocal function seldom(f)\nreturn f()\nend\nreturn seldom(rare)\nend\nend\n\
             return rare(1)"
        );
    }

    #[test]
    fn constants_stand_where_they_are_used() {
        let a = "local TTL_MS = 500\n\nlocal SIGN = '!'\n";
        let script = "-- @include a\n\nlocal function f(k)\n  return k.SIGN .. SIGN .. 'SIGN', TTL_MS + 1\nend\nreturn f\n";
        assert_eq!(
            assembled(script, &[("a", a)]).unwrap(),
            "local function f(k)\nreturn k.SIGN .. '!' .. 'SIGN', 500 + 1\nend\nreturn f"
        );
    }

    #[test]
    fn what_only_the_rest_needs_is_created_behind_what_comes_before() {
        let a = "local function often()\nend\n\nlocal function seldom()\n  often()\nend\n";
        let script = "-- @include a\n\nif often() then\n  return 1\nend\n\n-- Seldom.\n-- @include a\n\nreturn seldom()\n";
        assert_eq!(
            assembled(script, &[("a", a)]).unwrap(),
            "local function often()\nend\nif often() then\nreturn 1\nend\nlocal function seldom()\noften()\nend\n\
             return seldom()"
        );
        let too_early = script.replace("return 1", "return seldom()");
        assert_eq!(assembled(&too_early, &[("a", a)]).unwrap().matches("function seldom").count(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        let of = |script, texts| assembled(script, texts).unwrap_err();
        assert!(of("-- @include nope\nreturn 1", &[]).contains("no lua/include/nope.lua"));
        assert!(of("-- @include a", &[("a", "-- @include a\n")]).contains("includes itself"));
        assert!(of("return missing(1)", &[]).contains("`missing` is not defined"));
        assert!(of("local a = b\nlocal b = 1\nreturn a", &[]).contains("`b` is not defined"));
        assert!(of("-- @include a", &[("a", "redis.call('PING')")]).contains("defines nothing"));
        let shadowed = "local stamp = 1\nif stamp then\n  -- @include a\n  stamp = ours()\nend\nreturn stamp";
        let a = "local stamp = KEYS[1]\nlocal function ours()\n  return stamp\nend";
        assert!(of(shadowed, &[("a", a)]).contains("`stamp` is defined by an include, too"));
    }
}
