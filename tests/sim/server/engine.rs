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
                let command = args.iter().map(argument).collect::<mlua::Result<Vec<_>>>()?;
                let reply = data.borrow_mut().execute(&command, true);
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
        redis.set("REDIS_VERSION_NUM", 0x0007_000f)?;
        globals.set("redis", redis)?;
        let cjson = lua.create_table()?;
        cjson.set("encode", lua.create_function(|_, value: Value| encode(&value))?)?;
        cjson.set("decode", lua.create_function(|lua, text: LuaString| decode(lua, &text.as_bytes()))?)?;
        cjson.set("null", Value::NULL)?;
        globals.set("cjson", cjson)?;
        lua.load(PRELUDE).exec()?;
        // A Rust callback cannot raise a table, so `redis.call` raises it in Lua.
        lua.load(
            "local quiet = redis.call
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

    /// `hash`: of the text, which has run before or is given.
    pub fn run(&mut self, hash: &str, text: Option<&[u8]>, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Reply {
        if let Some(text) = text.filter(|_| !self.compiled.contains_key(hash)) {
            let mut text = String::from_utf8_lossy(text).into_owned();
            for (from, to) in &self.patches {
                text = text.replace(from, to);
            }
            match self.lua.load(text).set_name("@user_script").into_function() {
                Ok(function) => drop(self.compiled.insert(hash.into(), function)),
                Err(error) => return Reply::error(format!("ERR Error compiling script: {error}")),
            }
        }
        match self.call(hash, keys, args) {
            Ok(reply) => reply,
            Err(error) => Reply::error(error),
        }
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

fn argument(value: &Value) -> mlua::Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) => Ok(format_number(*number, 17).into_bytes()),
        other => Err(Error::runtime(format!("bad argument of redis.call: {other:?}"))),
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
fn encode(value: &Value) -> mlua::Result<String> {
    Ok(match value {
        Value::Nil => "null".into(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => format_number(*number, 14),
        Value::String(text) => quoted(&text.as_bytes()),
        Value::Table(table) => encode_table(table)?,
        other if *other == Value::NULL => "null".into(),
        other => return Err(Error::runtime(format!("cannot serialise {other:?}"))),
    })
}

fn encode_table(table: &Table) -> mlua::Result<String> {
    let length = table.raw_len();
    let count = table.pairs::<Value, Value>().count();
    if length > 0 && count == length {
        let items = table.sequence_values::<Value>().map(|item| encode(&item?));
        return Ok(format!("[{}]", items.collect::<mlua::Result<Vec<_>>>()?.join(",")));
    }
    let mut fields = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (name, value) = pair?;
        let name = match &name {
            Value::String(text) => quoted(&text.as_bytes()),
            Value::Integer(number) => format!("\"{number}\""),
            Value::Number(number) => format!("\"{}\"", format_number(*number, 14)),
            other => return Err(Error::runtime(format!("cannot serialise the key {other:?}"))),
        };
        fields.push(format!("{name}:{}", encode(&value)?));
    }
    Ok(format!("{{{}}}", fields.join(",")))
}

fn quoted(bytes: &[u8]) -> String {
    // Scripts get UTF-8 only: the client replaces anything else.
    let mut out = String::from("\"");
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn decode(lua: &Lua, text: &[u8]) -> mlua::Result<Value> {
    let value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| Error::runtime(format!("invalid JSON: {error}")))?;
    from_json(lua, &value)
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
