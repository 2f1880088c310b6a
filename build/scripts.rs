//! Assembles the Lua scripts: each carries what it uses of lua/include/, and nothing else.
//!
//! A script, or an include, names the includes that it needs in lines of the form `-- @include NAME`. An include is
//! a row of paragraphs, separated by blank lines. A paragraph defines local functions or variables; a script gets
//! those that it uses, directly or through others, because Redis creates every function anew in each call.
//!
//! The paragraphs are put where the line stands, so that what only the rest of a script uses is not created if the script
//! has returned before. If the line stands at the beginning of a function or of an `if`, they are created only when that
//! function is called, or that condition true.

use std::collections::{BTreeMap, BTreeSet};

/// What a script may use without defining it.
const GLOBALS: [&str; 15] = [
    "ARGV", "KEYS", "cjson", "error", "ipairs", "math", "pairs", "pcall", "redis", "string", "table",
    "tonumber", "tostring", "type", "unpack",
];
const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The texts of the includes by name.
pub type Includes = BTreeMap<String, String>;

/// The script as it is sent, without comments and indentation. Adds the names that it takes from includes to `used`.
pub fn assemble(script: &str, includes: &Includes, used: &mut BTreeSet<String>) -> Result<String, String> {
    let (mut text, mut names) = (String::new(), BTreeSet::new());
    for section in sections(script) {
        let mut outer = Selection { names, ..Selection::default() };
        let (top, nested) = split(&section);
        outer.add(&top, includes)?;
        text += &(outer.with(&strip(&top)) + "\n");
        check(&text)?;
        for function in nested {
            let mut inner = Selection { names: outer.names.clone(), ..Selection::default() };
            inner.add(&function, includes)?;
            used.extend(inner.names.iter().cloned());
            let body = strip(&function);
            let (head, rest) = body.split_once('\n').unwrap_or((&body, ""));
            text = text.replacen(&format!("{head}\nend"), &format!("{head}\n{}", inner.with(rest)), 1);
        }
        names = outer.names;
    }
    used.extend(names);
    check(&text)?;
    text.pop();
    Ok(text)
}

/// The parts of a script, each with its own includes at its beginning.
fn sections(script: &str) -> Vec<String> {
    let mut sections = vec![String::new()];
    let mut has_code = false;
    for line in script.split_inclusive('\n') {
        if has_code && line.starts_with("-- @include ") {
            sections.push(String::new());
            has_code = false;
        }
        has_code |= !strip(line).is_empty();
        sections.last_mut().expect("one at least").push_str(line);
    }
    sections
}

/// What a script, or a function that includes something itself, takes from includes.
#[derive(Default)]
struct Selection {
    /// Defined by these paragraphs, or around them.
    names: BTreeSet<String>,
    /// The last one first.
    paragraphs: Vec<String>,
}

impl Selection {
    fn add(&mut self, text: &str, includes: &Includes) -> Result<(), String> {
        let mut order = Vec::new();
        resolve(text, includes, &mut Vec::new(), &mut order)?;
        let mut wanted: BTreeSet<String> = tokens(&strip(text)).into_iter().map(String::from).collect();
        // Backwards, as a definition stands above its uses.
        for name in order.into_iter().rev() {
            for paragraph in paragraphs(&includes[name]).into_iter().rev() {
                let defined = definitions(&paragraph);
                if defined.is_empty() {
                    return Err(format!("lua/include/{name}.lua: a paragraph defines nothing: {paragraph}"));
                }
                let is_wanted = |name| wanted.contains(name) && !self.names.contains(name);
                if defined.iter().any(is_wanted) {
                    wanted.extend(tokens(&paragraph).into_iter().map(String::from));
                    self.names.extend(defined);
                    self.paragraphs.push(paragraph);
                }
            }
        }
        Ok(())
    }

    fn with(&self, text: &str) -> String {
        let parts = self.paragraphs.iter().rev().map(String::as_str).chain([text]);
        parts.collect::<Vec<_>>().join("\n")
    }
}

/// The functions and blocks that include something themselves are taken out; their first and last lines stay.
fn split(script: &str) -> (String, Vec<String>) {
    let (mut top, mut functions) = (String::new(), Vec::new());
    let mut lines = script.split_inclusive('\n');
    while let Some(line) = lines.next() {
        top += line;
        if line.starts_with("local function ") || line.starts_with("if ") {
            let mut function: String = lines.by_ref().take_while(|line| !line.starts_with("end")).collect();
            if function.contains("-- @include ") {
                functions.push(format!("{line}{function}end\n"));
                function.clear();
            }
            top += &(function + "end\n");
        }
    }
    (top, functions)
}

fn check(text: &str) -> Result<(), String> {
    match undefined_name(text) {
        Some(name) => {
            Err(format!("`{name}` is not defined above its use; is an \"-- @include\" line missing?"))
        }
        None => Ok(()),
    }
}

/// The names that an include defines, for the check that each is used by some script.
pub fn defined_in(include: &str) -> Vec<String> {
    paragraphs(include).iter().flat_map(|paragraph| definitions(paragraph)).collect()
}

/// The includes of a text, and theirs: each once, behind those that it needs.
fn resolve<'a>(
    text: &'a str,
    includes: &'a Includes,
    above: &mut Vec<&'a str>,
    order: &mut Vec<&'a str>,
) -> Result<(), String> {
    for name in text.lines().filter_map(|line| line.trim().strip_prefix("-- @include ")) {
        let included = includes.get(name).ok_or_else(|| format!("there is no lua/include/{name}.lua"))?;
        if above.contains(&name) {
            return Err(format!("lua/include/{name}.lua includes itself"));
        }
        if !order.contains(&name) {
            above.push(name);
            resolve(included, includes, above, order)?;
            above.pop();
            order.push(name);
        }
    }
    Ok(())
}

fn paragraphs(include: &str) -> Vec<String> {
    include.split("\n\n").map(strip).filter(|paragraph| !paragraph.is_empty()).collect()
}

fn strip(text: &str) -> String {
    let code = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.collect::<Vec<_>>().join("\n")
}

/// The names that the `local`s at the beginning of a paragraph define: `local function a(...)`, `local b, c = ...`.
fn definitions(paragraph: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in paragraph.lines() {
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

/// The first name that is used before it is declared, wherever that was.
fn undefined_name(text: &str) -> Option<&str> {
    let tokens = tokens(text);
    let mut declared = BTreeSet::from(GLOBALS);
    let mut i = 0;
    while i < tokens.len() {
        let (before, token) = (i.checked_sub(1).map_or("", |at| tokens[at]), tokens[i]);
        let after = tokens.get(i + 1).copied().unwrap_or_default();
        i += 1;
        match token {
            // All names up to the first other token: "local a, b =", "for a, b in", "function name(a, b)".
            "local" | "for" | "function" => {
                while tokens
                    .get(i)
                    .is_some_and(|&next| (is_name(next) && next != "function") || ",(".contains(next))
                {
                    declared.insert(tokens[i]);
                    i += 1;
                }
            }
            _ if !is_name(token) || before == "." || before == ":" => {}
            // The name of a field: "{ err = why }".
            _ if after == "=" && (before == "{" || before == ",") => {}
            _ if !declared.contains(token) => return Some(token),
            _ => {}
        }
    }
    None
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !KEYWORDS.contains(&token)
}

/// Names, keywords and signs, without strings, numbers and comments.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = match first {
            '\'' | '"' => 2 + rest[1..].find(first).unwrap_or(rest.len().saturating_sub(2)),
            _ if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            '.' | '=' | '~' => rest.find(|c| !".=~".contains(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, behind) = rest.split_at(length);
        let is_code = !token.starts_with("--") && !first.is_whitespace();
        if is_code && !first.is_ascii_digit() && first != '\'' && first != '"' {
            tokens.push(token);
        }
        rest = behind;
    }
    tokens
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
            ("a", "-- @include c\n\nlocal A = C"),
            ("b", "-- @include c\n\nlocal B = C"),
            ("c", "local C = 1"),
        ];
        let text = assembled("-- @include a\n-- @include b\nreturn A + B", &texts).unwrap();
        assert_eq!(text, "local C = 1\nlocal A = C\nlocal B = C\nreturn A + B");
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
    }

    #[test]
    fn only_names_that_stand_for_something_are_looked_up() {
        let script = "local k, list = { a = 1, b = 2 }, {}\nfor i, v in ipairs(list) do\n\
                      k.x = v .. 'unknown' .. i\nend\n\
                      pcall(function(why, ...)\nreturn why == 1e3, ...\nend) -- words\nreturn string.sub(k.x, 1)";
        assert_eq!(undefined_name(script), None);
    }
}
