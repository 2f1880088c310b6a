//! Runs scripts as Redis does: Lua 5.1, `redis.call`, `redis.pcall`, `cjson`, KEYS and ARGV.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Error, Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};

use super::data::Data;
use super::reply::Reply;

/// From Redis 7 on a caught error table becomes its text.
const PRELUDE: &str = r"
local raw_pcall = pcall
local function unwrapped(ok, ...)
  if ok then
    return ok, ...
  end
  local why = ...
  if type(why) == 'table' and type(why.err) == 'string' then
    why = why.err
  end
  return false, why
end
function pcall(...)
  return unwrapped(raw_pcall(...))
end
";

const BAD_ARGUMENT: &str = "ERR Lua redis lib command arguments must be strings or integers";
const NO_COMMAND: &str = "ERR Please specify at least one argument for this redis lib call";

/// A change to the text of a script: each occurrence of the first is replaced by the second.
pub type Patch = (&'static str, &'static str);

pub struct Engine {
    lua: Lua,
    patches: Vec<Patch>,
    /// By hash. Compiled once; what is known to the server is its own affair.
    compiled: BTreeMap<String, Function>,
}

impl Engine {
    pub fn new(data: &Rc<RefCell<Data>>, patches: Vec<Patch>) -> Self {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false)).expect("Lua");
        let engine = Self { lua, patches, compiled: BTreeMap::new() };
        engine.provide(data).expect("Lua takes our functions");
        engine
    }

    fn provide(&self, data: &Rc<RefCell<Data>>) -> mlua::Result<()> {
        let (lua, globals) = (&self.lua, self.lua.globals());
        let redis = lua.create_table()?;
        for (name, raises) in [("call", true), ("pcall", false)] {
            let data = Rc::clone(data);
            let function = lua.create_function(move |lua, args: MultiValue| {
                let reply = match args.iter().map(argument).collect::<Option<Vec<_>>>() {
                    Some(command) if command.is_empty() => Reply::error(NO_COMMAND),
                    Some(command) => data.borrow_mut().execute_in_script(&command),
                    None => Reply::error(BAD_ARGUMENT),
                };
                match reply {
                    Reply::Error(text) => {
                        let error = lua.create_table()?;
                        error.set("err", text)?;
                        error.set("raise", raises)?;
                        Ok(Value::Table(error))
                    }
                    reply => to_lua(lua, reply),
                }
            })?;
            redis.set(name, function)?;
        }
        let sha1hex =
            |_: &Lua, text: LuaString| Ok(sha1_smol::Sha1::from(&text.as_bytes()[..]).digest().to_string());
        redis.set("sha1hex", lua.create_function(sha1hex)?)?;
        redis.set("REDIS_VERSION_NUM", 0x0007_000f)?;
        globals.set("redis", redis)?;
        let cjson = lua.create_table()?;
        let to_json = |lua: &Lua, value: Value| {
            let mut text = Vec::new();
            encode(&value, &mut text)?;
            lua.create_string(text)
        };
        cjson.set("encode", lua.create_function(to_json)?)?;
        cjson.set("decode", lua.create_function(|lua, text: LuaString| decode(lua, &text.as_bytes()))?)?;
        cjson.set("null", Value::NULL)?;
        globals.set("cjson", cjson)?;
        lua.load(PRELUDE).exec()?;
        // A Rust callback can raise neither a table nor a plain text, so this is done in Lua.
        lua.load(
            "local decode = cjson.decode
             function cjson.decode(text)
               local value, failure = decode(text)
               if failure then
                 error(failure, 0)
               end
               return value
             end
             local quiet = redis.call
             function redis.call(...)
               local reply = quiet(...)
               if type(reply) == 'table' and reply.raise then
                 error({ err = reply.err })
               end
               return reply
             end",
        )
        .exec()
    }

    /// `hash`: the text's hash.
    pub fn compile(&mut self, hash: &str, text: &[u8]) -> Result<(), Reply> {
        if self.compiled.contains_key(hash) {
            return Ok(());
        }
        let mut text = String::from_utf8_lossy(text).into_owned();
        for (from, to) in &self.patches {
            text = text.replace(from, to);
        }
        match self.lua.load(text).set_name("@user_script").into_function() {
            Ok(function) => drop(self.compiled.insert(hash.into(), function)),
            Err(Error::SyntaxError { message, .. }) => {
                return Err(Reply::error(format!("ERR Error compiling script (new function): {message}")));
            }
            Err(error) => panic!("{error}"),
        }
        Ok(())
    }

    /// `hash`: that of a text that was compiled.
    pub fn run(&self, hash: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Reply {
        self.call(hash, keys, args).unwrap_or_else(Reply::error)
    }

    fn call(&self, hash: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Result<Reply, String> {
        let globals = self.lua.globals();
        for (name, items) in [("KEYS", keys), ("ARGV", args)] {
            let list = items.iter().map(|item| self.lua.create_string(item));
            let list = list.collect::<mlua::Result<Vec<_>>>().map_err(|error| error.to_string())?;
            globals.set(name, list).map_err(|error| error.to_string())?;
        }
        // Through the raw pcall: an error may be a table.
        let (ok, value): (bool, Value) = self
            .lua
            .load("local f = ... return xpcall(f, function(why) return why end)")
            .call(&self.compiled[hash])
            .map_err(|error| error.to_string())?;
        if ok {
            return from_lua(&value).map_err(|error| error.to_string());
        }
        let text = match &value {
            Value::Table(table) => table.get::<LuaString>("err").map(|text| text.to_string_lossy()),
            Value::String(text) => Ok(format!("ERR {}", text.to_string_lossy())),
            other => Ok(format!("ERR {other:?}")),
        };
        let text = text.map_err(|error| error.to_string())?;
        Err(format!("{text} script: {hash}, on @user_script:0."))
    }
}

fn argument(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) => Some(format_number(*number, 17).into_bytes()),
        _ => None,
    }
}

/// As `%.{digits}g`, for whole numbers.
fn format_number(number: f64, digits: i32) -> String {
    assert!(number.fract() == 0.0, "{number}: the scripts use whole numbers");
    if number.abs() < 10f64.powi(digits) {
        return format!("{number:.0}");
    }
    let digits = usize::try_from(digits - 1).expect("positive");
    let text = format!("{number:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').expect("an exponent");
    format!("{}e+{exponent:0>2}", mantissa.trim_end_matches('0').trim_end_matches('.'))
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Int(number) => Value::Number(number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Nil | Reply::NilArray => Value::Boolean(false),
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.set("ok", text)?;
            Value::Table(table)
        }
        Reply::Error(_) => unreachable!("handled by the caller"),
        Reply::Array(items) => {
            let items = items.into_iter().map(|item| to_lua(lua, item)).collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(items)?)
        }
    })
}

fn from_lua(value: &Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::String(text) => Reply::bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Table(table) => {
            if let Some(error) = table.get::<Option<LuaString>>("err")? {
                return Ok(Reply::error(error.to_string_lossy()));
            }
            if let Some(status) = table.get::<Option<LuaString>>("ok")? {
                return Ok(Reply::Status(status.to_string_lossy()));
            }
            let mut items = Vec::new();
            loop {
                match table.get::<Value>(items.len() + 1)? {
                    Value::Nil => break Reply::Array(items),
                    item => items.push(from_lua(&item)?),
                }
            }
        }
        other => return Err(Error::runtime(format!("a script returned {other:?}"))),
    })
}

/// As cjson does it: a table with positive whole keys only is an array, an empty one an object.
fn encode(value: &Value, out: &mut Vec<u8>) -> mlua::Result<()> {
    match value {
        Value::Nil => out.extend(b"null"),
        Value::Boolean(truth) => out.extend(truth.to_string().bytes()),
        Value::Integer(number) => out.extend(format_number(*number as f64, 14).bytes()),
        Value::Number(number) => out.extend(format_number(*number, 14).bytes()),
        Value::String(text) => quote(&text.as_bytes(), out),
        Value::Table(table) => encode_table(table, out)?,
        other if *other == Value::NULL => out.extend(b"null"),
        other => return Err(Error::runtime(format!("cannot serialise {other:?}"))),
    }
    Ok(())
}

fn encode_table(table: &Table, out: &mut Vec<u8>) -> mlua::Result<()> {
    let length = table.raw_len();
    let count = table.pairs::<Value, Value>().count();
    let is_array = length > 0 && count == length;
    out.push(if is_array { b'[' } else { b'{' });
    if is_array {
        for (at, item) in table.sequence_values::<Value>().enumerate() {
            out.extend(&b","[..usize::from(at > 0)]);
            encode(&item?, out)?;
        }
    } else {
        for (at, pair) in table.pairs::<Value, Value>().enumerate() {
            out.extend(&b","[..usize::from(at > 0)]);
            let (name, value) = pair?;
            match &name {
                Value::String(text) => quote(&text.as_bytes(), out),
                Value::Integer(number) => quote(format_number(*number as f64, 14).as_bytes(), out),
                Value::Number(number) => quote(format_number(*number, 14).as_bytes(), out),
                other => return Err(Error::runtime(format!("cannot serialise the key {other:?}"))),
            }
            out.push(b':');
            encode(&value, out)?;
        }
    }
    out.push(if is_array { b']' } else { b'}' });
    Ok(())
}

fn quote(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | b'/' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            8 => out.extend(b"\\b"),
            12 => out.extend(b"\\f"),
            0..0x20 | 0x7f => out.extend(format!("\\u{byte:04x}").bytes()),
            byte => out.push(byte),
        }
    }
    out.push(b'"');
}

/// The value, or nil and the error. Its text is not that of cjson.
fn decode(lua: &Lua, text: &[u8]) -> mlua::Result<(Value, Option<String>)> {
    match serde_json::from_slice(text) {
        Ok(value) => Ok((from_json(lua, &value)?, None)),
        Err(error) => Ok((Value::Nil, Some(format!("invalid JSON: {error}")))),
    }
}

fn from_json(lua: &Lua, value: &serde_json::Value) -> mlua::Result<Value> {
    Ok(match value {
        serde_json::Value::Null => Value::NULL,
        serde_json::Value::Bool(truth) => Value::Boolean(*truth),
        serde_json::Value::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => Value::String(lua.create_string(text)?),
        serde_json::Value::Array(items) => {
            let items = items.iter().map(|item| from_json(lua, item)).collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(items)?)
        }
        serde_json::Value::Object(fields) => {
            let table = lua.create_table()?;
            for (name, value) in fields {
                table.set(name.as_str(), from_json(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}
