// api_share.mjs: one tenant cannot use up what all of them share. Queries are held up by a lock on a table
// that the engine does not ask: held up itself, it would lose its lease.
import { spawn } from 'node:child_process'
import { Judged, check, id, options, same, test, until } from './harness.mjs'

const HALF = 512 // of the queries that may be under way

test('queries: a tenant has half of what may be under way, and the others go on', async () => {
  const root = new Judged(options.key)
  const viewer = async () => (await root.must(201, 'POST', '/v1/keys', { name: 'v', roles: ['viewer'], tenantId: id('t') })).key
  const [greedy, modest] = [await viewer(), await viewer()]
  const other = new Judged(modest)
  const many = Array.from({ length: HALF + 60 }, () => new Judged(greedy))
  await Promise.all(many.map((client) => client.must(200, 'GET', '/v1/me'))) // connected: a query waits five seconds for a lock, no longer
  await other.must(200, 'GET', '/v1/me')
  const psql = spawn('psql', ['-X', '-qAt', '-d', options.db])
  let said = ''
  psql.stdout.on('data', (part) => { said += part })
  psql.stdin.write("BEGIN; LOCK TABLE state_alert IN ACCESS EXCLUSIVE MODE; SELECT 'locked';\n")
  await until('the lock', () => said.includes('locked'))
  let answered = []
  const asked = many.map((client) => client.get('/v1/alerts').then((answer) => answered.push(answer)))
  await until('those beyond the share are refused', () => answered.length >= 60)
  same(answered.map((a) => [a.status, a.json.code, a.json.retryable, a.headers['retry-after']]).filter((a) => a[0] !== 429), [])
  check(answered.every((a) => a.json.code === 'TENANT_QUERIES_TOO_MANY'), answered[0].json.code)
  same(answered.length, 60)
  answered = []
  const modestly = other.get('/v1/alerts')
  psql.stdin.end('COMMIT;\n')
  same((await modestly).status, 200)
  await Promise.all(asked)
  same(answered.map((a) => a.status).filter((s) => s === 200).length, HALF)
  for (const client of [...many, other, root]) client.close()
})
