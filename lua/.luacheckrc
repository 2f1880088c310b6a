-- For the assembled scripts: see docs/testing.md. Only what Redis offers and the scripts may use.
stds.redis = {
  read_globals = {
    'ARGV', 'KEYS', 'cjson', 'error', 'ipairs', 'math', 'pairs', 'pcall', 'redis', 'string', 'table', 'tonumber',
    'tostring', 'type', 'unpack',
  },
}
std = 'redis'
-- Indentation is stripped from the assembled scripts.
max_line_length = false
-- Parameters that every script is called with, and not every script needs.
ignore = { '211/[A-Z_]+', '311/MARKED' }
