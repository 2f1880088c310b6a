//! The names in a Lua script: where they stand, and whether each is known there.

use std::collections::BTreeSet;

/// What a script may use without defining it.
const GLOBALS: [&str; 15] = [
    "ARGV", "KEYS", "cjson", "error", "ipairs", "math", "pairs", "pcall", "redis", "string", "table",
    "tonumber", "tostring", "type", "unpack",
];
const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The first name that is used where it is not declared: Redis takes it for a global variable, which is an error, but only
/// when the line is reached.
pub fn undefined_name(text: &str) -> Option<&str> {
    let tokens = tokens(text);
    let mut scopes = vec![BTreeSet::from(GLOBALS)];
    let mut of_loop = BTreeSet::new();
    let mut i = 0;
    while i < tokens.len() {
        let (before, token) = (i.checked_sub(1).map_or("", |at| tokens[at]), tokens[i]);
        let after = tokens.get(i + 1).copied().unwrap_or_default();
        i += 1;
        // All names up to the first other token: "local a, b =", "for a, b in", "function name(a, b)".
        let is_declared = |&&next: &&&str| (is_name(next) && next != "function") || ",(".contains(next);
        let declared = tokens[i..].iter().take_while(is_declared).copied();
        match token {
            "local" => scopes.last_mut()?.extend(declared),
            "for" => of_loop.extend(declared),
            "function" => {
                let mut declared: BTreeSet<&str> = declared.collect();
                if is_name(after) {
                    scopes.last_mut()?.insert(after);
                    declared.insert(after);
                }
                scopes.push(declared);
            }
            "do" => scopes.push(std::mem::take(&mut of_loop)),
            "then" => scopes.push(BTreeSet::new()),
            "else" => *scopes.last_mut()? = BTreeSet::new(),
            "elseif" | "end" => drop(scopes.pop()),
            _ if !is_name(token) || before == "." || before == ":" => {}
            // The name of a field: "{ err = why }".
            _ if after == "=" && (before == "{" || before == ",") => {}
            _ if of_loop.contains(token) || scopes.iter().any(|scope| scope.contains(token)) => {}
            _ => return Some(token),
        }
    }
    None
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !KEYWORDS.contains(&token)
}

/// Names, keywords and signs, without strings, numbers and comments.
pub fn tokens(text: &str) -> Vec<&str> {
    let is_token = |lexeme: &&str| {
        let is_other = |c: char| c.is_whitespace() || c.is_ascii_digit() || c == '\'' || c == '"';
        !lexeme.starts_with("--") && !lexeme.starts_with(is_other)
    };
    lexemes(text).into_iter().filter(is_token).collect()
}

/// All of a text in its smallest parts.
pub fn lexemes(text: &str) -> Vec<&str> {
    let mut lexemes = Vec::new();
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
        let (lexeme, behind) = rest.split_at(length);
        lexemes.push(lexeme);
        rest = behind;
    }
    lexemes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_only_in_its_block() {
        assert_eq!(undefined_name("if KEYS then\nlocal a = 1\nend\nreturn a"), Some("a"));
        assert_eq!(undefined_name("local function f(a)\nlocal b = a\nend\nreturn b"), Some("b"));
        assert_eq!(undefined_name("for i = 1, 2 do\nlocal a = i\nend\nreturn i"), Some("i"));
        assert_eq!(undefined_name("if KEYS then\nlocal a = 1\nelse\nreturn a\nend"), Some("a"));
        assert_eq!(
            undefined_name("local function f(n)\nif n then\nreturn f(n)\nelse\nreturn n\nend\nend\nreturn f"),
            None
        );
    }

    #[test]
    fn only_names_that_stand_for_something_are_looked_up() {
        let script = "local k, list = { a = 1, b = 2 }, {}\nfor i, v in ipairs(list) do\n\
                      k.x = v .. 'unknown' .. i\nend\n\
                      pcall(function(why, ...)\nreturn why == 1e3, ...\nend) -- words\nreturn string.sub(k.x, 1)";
        assert_eq!(undefined_name(script), None);
    }
}
