"""Lua scripts of the namespace and its versions, which keep the rules of `trainer.publish.fence`.

Each begins with FENCE: its first key is an epoch, its first argument the trainer's.
"""

FENCE = """
local held, mine = tonumber(redis.call('GET', KEYS[1])), tonumber(ARGV[1])
if held ~= mine then
  if held and held > mine then return 'FENCED' end
  return 'LOST'
end
"""

BEGIN = (
    FENCE
    + """
-- KEYS: epoch, pushing, highest, entry of the publish log; ARGV: epoch, version, the entry or '' for none
if ARGV[3] ~= '' then redis.call('SET', KEYS[4], ARGV[3]) end
redis.call('SET', KEYS[2], ARGV[2])
if tonumber(redis.call('GET', KEYS[3]) or 0) < tonumber(ARGV[2]) then redis.call('SET', KEYS[3], ARGV[2]) end
return 'OK'
"""
)

FLIP = (
    FENCE
    + """
-- KEYS: epoch, manifest, mark of a push, hold, marks of the ranks' shares
-- ARGV: epoch, new manifest, the manifest before it or '' for any, channel, version, text of a share's mark,
-- '1' to flip over a hold
local now = redis.call('GET', KEYS[2])
if now == ARGV[2] then return 'OK' end
if ARGV[7] ~= '1' and redis.call('EXISTS', KEYS[4]) == 1 then return 'HELD' end
if ARGV[3] ~= '' and now ~= ARGV[3] then return 'LOST' end
for i = 5, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[6] then return 'LOST' end
end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[3])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 'OK'
"""
)

PUSHED = (
    FENCE
    + """
-- KEYS: epoch, mark of the rank's share; ARGV: epoch, text of the mark
redis.call('SET', KEYS[2], ARGV[2])
return 'OK'
"""
)

OPEN = (
    FENCE
    + """
-- KEYS: epoch, the rank's part, the values' sentinel; ARGV: epoch, the manifest's sentinel, fingerprint
redis.call('SET', KEYS[2], ARGV[2])
local pipeline = redis.call('GET', KEYS[3])
if pipeline and pipeline ~= ARGV[3] and string.sub(pipeline, 1, #ARGV[3] + 1) ~= ARGV[3] .. ':' then
  redis.call('UNLINK', KEYS[3])
end
return 'OK'
"""
)

SEAL = (
    FENCE
    + """
-- KEYS: epoch, the rows' sentinel, the values' sentinel, all ranks' parts; ARGV as of OPEN
for i = 4, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[2] then return 'LOST' end
end
redis.call('MSET', KEYS[2], ARGV[2], KEYS[3], ARGV[3])
return 'OK'
"""
)

TAKE = """
-- KEYS: epoch, owner, manifest, highest
-- ARGV: least epoch, owner, the manifest that was looked at, least number
-- Answers {epoch, highest number}, or {-1} when another manifest stands there by now.
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[3] then return {-1} end
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(ARGV[1])) + 1
local highest = math.max(tonumber(redis.call('GET', KEYS[4]) or 0), tonumber(ARGV[4]))
redis.call('SET', KEYS[1], epoch)
redis.call('SET', KEYS[2], ARGV[2])
redis.call('SET', KEYS[4], highest)
return {epoch, highest}
"""

RENEW = """
-- KEYS: epoch, owner, hold, highest; ARGV: own epoch, owner
-- Answers {epoch, whether Redis held the own epoch, highest number}; {-1}: another trainer may write; {-2}:
-- the namespace is held.
local held, mine = tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(ARGV[1])
local owner = redis.call('GET', KEYS[2])
local own = owner == ARGV[2]  -- also when an earlier answer of this script was lost
if (held > mine and not own) or (held == mine and owner and not own) then return {-1} end
if redis.call('EXISTS', KEYS[3]) == 1 then return {-2} end
local epoch = math.max(held, mine) + 1
redis.call('SET', KEYS[1], epoch)
redis.call('SET', KEYS[2], ARGV[2])
return {epoch, held >= mine and 1 or 0, tonumber(redis.call('GET', KEYS[4]) or 0)}
"""

CLAIM = """
-- KEYS: an epoch; ARGV: epoch. The fence rises, or is set up where there is none ('LOST').
local held, mine = tonumber(redis.call('GET', KEYS[1])), tonumber(ARGV[1])
if held and held > mine then return 'FENCED' end
redis.call('SET', KEYS[1], ARGV[1])
return held and 'OK' or 'LOST'
"""
