// api_rate.mjs: a server with --rate 5 --auth: what callers are told, and that one does not slow down another.
import { Judged, check, options, pause, same, test } from './harness.mjs'

const root = new Judged(options.key)
const made = async (name) => {
  await pause(1100) // root has a limit, too
  const key = await root.must(201, 'POST', '/v1/keys', { name, roles: ['viewer'], tenantId: 'acme' })
  return new Judged(key.key)
}

test('what is left is told with every answer', async () => {
  const client = await made('a')
  const left = []
  for (let i = 0; i < 3; i++) {
    const answer = await client.get('/v1/me')
    same([answer.status, answer.headers['ratelimit-policy']], [200, '"default";q=5;w=1'])
    left.push(Number(/^"default";r=(\d+);t=\d+$/.exec(answer.headers.ratelimit)[1]))
  }
  check(left[0] === 4 && left[2] < left[0], left.join())
})
test('too many are 429 with Retry-After, and after it they are fine again', async () => {
  const client = await made('b')
  const answers = []
  for (let i = 0; i < 12; i++) answers.push(await client.get('/v1/me'))
  const bad = answers.filter((a) => a.status === 429)
  check(answers[0].status === 200 && bad.length >= 3 && answers.every((a) => [200, 429].includes(a.status)), answers.map((a) => a.status).join())
  same([bad[0].json.code, bad[0].json.retryable], ['RATE_LIMITED', true])
  check(/r=0/.test(bad[0].headers.ratelimit), bad[0].headers.ratelimit)
  const wait = Number(bad.at(-1).headers['retry-after'])
  check(wait >= 1 && wait <= 2, `Retry-After: ${wait}`)
  await pause(wait * 1000 + 100)
  await client.must(200, 'GET', '/v1/me')
})
test('one caller does not use up what another has', async () => {
  const [a, b] = [await made('c'), await made('d')]
  for (let i = 0; i < 10; i++) await a.get('/v1/me')
  await b.must(200, 'GET', '/v1/me')
})
test('refusals count, for they are written down', async () => {
  const client = await made('e')
  const answers = []
  for (let i = 0; i < 12; i++) answers.push((await client.post('/v1/runs', {})).status)
  check(answers[0] === 403 && answers.includes(429), answers.join())
})
test('what is open to everybody has no limit', async () => {
  const nobody = new Judged('')
  for (let i = 0; i < 20; i++) await nobody.must(200, 'GET', '/livez')
})
