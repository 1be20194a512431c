/*
 * The spool protocol at the grain of single file operations.
 *
 * Every step below is one rename, create, unlink, link, fsync, listing or read, done in one d_step.  The directory of
 * tokens is a set of names: one int per form and life, one bit per name.  A name is (group, attempt, mask of tasks); the
 * group is the generation (RETRY, CANCEL) or the kind of batch (FOLD).  A journal is a set of receipts, `jo` as written and
 * `jd` as durable: a crash keeps `jo`, a power loss falls back to `jd`.
 *
 * Features, each switched by -D:  PAUSE a live worker is suspected and reaped · STALE a listing misses moved names ·
 *   CHECK check and repair · LOST replies of renames get lost · PUBLISH · RETRY · CANCEL · AFTER · FOLD · BOOKS started records
 * Bounds: NT tasks, NW workers, NR reapers, NA attempts, NCRASH deaths of workers, NPOWER journals cut, NRC deaths of
 *   reapers, NFAIL failed runs, NSPLIT splits, NGIVE claims given back, NSUSP suspicions, NLOST lost replies.
 * MUT_* switches break one step each; check.py knows which property each of them must break.  SPARE_* switches leave out a
 * step that another step backs up: the searches stay clean.
 */
#ifndef NT
#define NT 2
#endif
#ifndef NW
#define NW 2
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NA
#define NA 4
#endif
#ifndef NCRASH
#define NCRASH 1
#endif
#ifndef NPOWER
#define NPOWER 0
#endif
#ifndef NRC
#define NRC 0
#endif
#ifndef NFAIL
#define NFAIL 0
#endif
#ifndef NSPLIT
#define NSPLIT 0
#endif
#ifndef NGIVE
#define NGIVE 0
#endif
#ifndef NSUSP
#ifdef PAUSE
#define NSUSP 1
#else
#define NSUSP 0
#endif
#endif
#ifndef NLOST
#ifdef LOST
#define NLOST 1
#else
#define NLOST 0
#endif
#endif
#ifndef NP
#define NP 2
#endif
#ifndef NC
#define NC 1
#endif
#ifndef NQ
#define NQ 1
#endif
#if defined(RETRY) || defined(FOLD)
#define NG 2
#else
#define NG 1
#endif
#ifdef FOLD
#define NF 1
#else
#define NF 0
#endif
#ifdef RETRY
#define GENS 2
#else
#define GENS 1
#endif

#define NL (NW+NF)
#define NJ (NL+NR)
#define ALL ((1<<NT)-1)
#define NM ALL
#define NAMES (NG*NA*NM)
#define BIT(n) (1<<((n)-1))
#define MASK(n) (((n)-1)%NM+1)
#define ATT(n) ((((n)-1)/NM)%NA+1)
#define GRP(n) (((n)-1)/(NM*NA))
#define NAME(g,a,m) (((g)*NA+(a)-1)*NM+(m))
#ifdef FOLD
#define GEN(n) 0
#else
#define GEN(n) GRP(n)
#endif
/* One receipt bit per (task, generation, attempt). */
#define REC(t,g,a) (1<<((t)+NT*(((a)-1)+NA*(g))))
#define RUN(t,g,a) ((t)+NT*(((a)-1)+NA*(g))+1)
#define RTASK(x) (((x)-1)%NT)

#define LIVE 0
#define REAPING 1
#define FENCED 2
#define DEAD 3

c_decl {
\#include <string.h>
\#define cMASK(n) (((n)-1)%cNM+1)
\#define cATT(n) ((((n)-1)/cNM)%cNA+1)
\#define cGRP(n) (((n)-1)/(cNM*cNA))
\#define cNAME(g,a,m) (((g)*cNA+(a)-1)*cNM+(m))
\#define cBIT(n) (1<<((n)-1))
enum { cNT = NT, cNA = NA, cNM = NM, cNJ = NJ, cNL = NL, cNW = NW, cGENS = GENS, cNAMES = NAMES };
static int low(int x) { return x ? __builtin_ctz(x) + 1 : 0; }
static int high(int x) { return x ? 32 - __builtin_clz(x) : 0; }
static int hull(int m) { int l = m & -m, h = 1 << (high(m) - 1); return m ? (h | (h - 1)) & ~(l - 1) : 0; }
static int all_of(int *p) { int i, u = 0; for (i = 0; i < cNJ; i++) u |= p[i]; return u; }
/* every receipt bit of the tasks in mask m */
static int recs(int m) { int i, u = 0; for (i = 0; i < cNA * cGENS; i++) u |= m << (cNT * i); return u; }
/* tasks with a receipt of generation g in u */
static int ended_in(int u, int g) { int i, e = 0; for (i = 0; i < cNA; i++) e |= u >> (cNT * (i + cNA * g)); return e & ((1 << cNT) - 1); }
/* every name of group g that covers task t; g < 0: of any group */
static int names_of(int t, int g) { int n, c = 0;
  for (n = 1; n <= cNAMES; n++) if ((cMASK(n) >> t & 1) && (g < 0 || cGRP(n) == g)) c |= 1 << (n - 1); return c; }
/* draft d lies inside one of the fenced names f: it was never committed */
static int is_void(int d, int f) { int n;
  for (n = 1; n <= cNAMES; n++) if ((f >> (n - 1) & 1) && cGRP(n) == cGRP(d) && !(cMASK(d) & ~cMASK(n))
      && (cMASK(d) != cMASK(n) || cATT(n) < cATT(d))) return 1;
  return 0; }
}

/* tokens/: one set per form */
int wt;
int cl[NL];
int dr[NL];
int fe[NL];
#ifdef AFTER
int hd;
#endif
byte st[NL];
bool alive[NL];
bool ral[NR];
byte ex[NW];
int jo[NJ];
int jd[NJ];
#ifdef BOOKS
int js[NJ];
int jsd[NJ];
#endif
#ifdef RETRY
byte gen[NT];
byte qd;
byte rq;
#endif
#ifdef CANCEL
byte can[NT];
byte ncan;
#endif
#ifdef PUBLISH
byte led;
bool pdr[NP];
byte pubs;
#endif
#ifdef FOLD
byte fold;       /* 0 open, 1 committed, 2 closed by a reaper's tombstone */
int folded;      /* names that the merged batch lists */
#endif
#ifdef CHECK
byte cdr[NC];
byte rp, cstops, looks, removed;
#ifndef NLOOK
#define NLOOK 1
#endif
#endif
/* ghost: attempts that ever got a child */
int gs;
#ifdef CANCEL
int gc;
#endif
byte crashes, powers, rcs, fails, splits, gives, susps, losts, begun, rbegun;

c_decl {
#ifdef RETRY
\#define GVEC now.gen
#else
\#define GVEC (unsigned char *) 0
#endif
#ifdef AFTER
\#define HELD now.hd
#else
\#define HELD 0
#endif
#ifdef FOLD
\#define GONE (now.fold == 1 ? now.folded : 0)
#else
\#define GONE 0
#endif
/* tasks of mask m that a name of generation g need not run: a receipt of g stands in u, or a newer generation exists */
static int fin(int u, int m, int g, unsigned char *gv) { int t, e = ended_in(u, g) & m;
#ifndef SPARE_OLDGEN
  if (gv) for (t = 0; t < cNT; t++) if (gv[t] > g) e |= m & 1 << t;
#endif
  return e; }
static int ended_new(int u, unsigned char *gv) { int t, e = 0;
  for (t = 0; t < cNT; t++) e |= ended_in(u, gv ? gv[t] : 0) & 1 << t; return e; }
/* names that cover task t in its newest generation; drafts of lives count when asked; names in `gone` do not */
static int covers(int t, unsigned char *gv, int gone, int wt, int hd, int *cl, int *dr, int *fe, unsigned char *st, int drafts) {
  static int tab[3][3]; int *p = &tab[t][gv ? gv[t] : 2], c, k, n;
  if (!*p) *p = names_of(t, gv ? gv[t] : -1);
  c = *p; n = __builtin_popcount(wt & c) + __builtin_popcount(hd & c);
  for (k = 0; k < cNL; k++) { n += __builtin_popcount(fe[k] & c & ~gone);
#ifdef MUT_NOREREAP
    if (st[k] < FENCED)
#endif
      n += __builtin_popcount(cl[k] & c & ~gone);
    if (drafts && st[k] < FENCED) n += __builtin_popcount(dr[k] & c); }
  return n; }
\#define COVERS(t,d) covers(t, GVEC, GONE, now.wt, HELD, now.cl, now.dr, now.fe, now.st, d)
\#define ENDED_D ended_new(all_of(now.jd), GVEC)
\#define ENDED_W ended_new(all_of(now.jo), GVEC)
}

c_decl {
\#define AFTER_VISIBLE (ENDED_W & 1)
\#define AFTER_DURABLE (ENDED_D & 1)
\#define RETRY_VISIBLE (ended_in(all_of(now.jo), 0) & 1)
#ifdef MUT_RETRYRUNNING
\#define RETRY_DURABLE (ended_in(all_of(now.jd), 0) & 1)
#else
\#define RETRY_DURABLE ((ended_in(all_of(now.jd), 0) & 1) && !held_by_other(now.cl, now.jo))
#endif
/* a life holds a claim of task 0, generation 0, and its own journal has no receipt of it: it may run it still */
static int held_by_other(int *cl, int *jo) { int k;
  for (k = 0; k < cNL; k++) if ((cl[k] & names_of(0, 0)) && !(ended_in(jo[k], 0) & 1)) return 1;
  return 0; }
/* tasks with a cancel request for generation g */
static int canmask(unsigned char *can, int g) { int t, e = 0;
  for (t = 0; t < cNT; t++)
#ifdef MUT_CANCELNOGEN
    if (can[t])
#else
    if (can[t] >> g & 1)
#endif
      e |= 1 << t;
  return e; }
\#define FOLD_HULL (hull(cMASK(Pfolder->m)) == cMASK(Pfolder->m))
\#define CANMASK(g) canmask(now.can, g)
\#define CAN_TODO (CANMASK(GEN(Pworker->my)) & Pworker->todo)
\#define CAN_T (CANMASK(GEN(Pworker->my)) >> Pworker->t & 1)
/* the names of small batches */
static int small(void) { int n, s = 0; for (n = 1; n <= cNAMES; n++) if (cGRP(n) == 0) s |= cBIT(n); return s; }
/* highest attempt of task t in names and records */
static int highest(int t, unsigned char *gv, int wt, int hd, int *cl, int *dr, int *fe, int recs) {
  int n, k, h = 0, a, g = gv ? gv[t] : 0, all = wt | hd;
  for (k = 0; k < cNL; k++) all |= cl[k] | dr[k] | fe[k];
  for (n = 1; n <= cNAMES; n++) if ((all >> (n - 1) & 1) && (cMASK(n) >> t & 1) && (!gv || cGRP(n) == g) && cATT(n) > h) h = cATT(n);
  for (a = 1; a <= cNA; a++) if ((recs >> (t + cNT * (a - 1 + cNA * g)) & 1) && a > h) h = a;
  return h; }
static int busy(unsigned char *st) { int k; for (k = 0; k < cNL; k++) if (st[k] == 1 || st[k] == 2) return 1; return 0; }
}

c_decl {
#ifdef BOOKS
\#define CHECK_STARTED all_of(now.js)
#else
\#define CHECK_STARTED 0
#endif
\#define UNCOVERED uncovered(ENDED_W, GVEC, GONE, now.wt, HELD, now.cl, now.dr, now.fe, now.st)
\#define UNENDED_W (~ENDED_W & ((1 << cNT) - 1))
\#define SEEN_ ((Pcheck->l0 & now.wt) | (Pcheck->l1 & now.cl[0]) | (Pcheck->l2 & now.fe[0]) | (Pcheck->l3 & now.cl[1]) | (Pcheck->l4 & now.fe[1]))
\#define SEEN (SEEN_ & names_of(Pcheck->t, -1))
\#define NOT_SEEN (!(SEEN_ & names_of(Pcheck->t, -1)))
\#define STILL_UNCOVERED (UNCOVERED >> Pcheck->t & 1)
static int uncovered(int e, unsigned char *gv, int gone, int wt, int hd, int *cl, int *dr, int *fe, unsigned char *st) {
  int t, u = 0; if (busy(st)) return 0;
  for (t = 0; t < cNT; t++) if (!(e >> t & 1) && !covers(t, gv, gone, wt, hd, cl, dr, fe, st, 1)) u |= 1 << t;
  return u; }
}

#define PICK(P,var,set) \
  if :: c_code { P->var = low(set); } \
     :: c_expr { ((set) & ((set) - 1)) } -> c_code { P->var = high(set); } fi

#define LIVEW (st[w] == LIVE)

proctype worker(byte w) {
  byte my, todo, t, n, dn, kp, at; /* my claim, its tasks to do, the task, a name, the draft, the part kept, the attempt */
  {
  skip;
idle:
  atomic { my = 0; todo = 0; t = 0; n = 0; dn = 0; kp = 0; at = 0; }
end_idle:
  do
#ifdef LOST
#ifndef MUT_NOADOPT
  :: atomic { LIVEW && cl[w] != 0 -> PICK(Pworker, my, now.cl[Pworker->w]); printf("W%d adopts %d\n", w, my); goto got }
#endif
#endif
#ifdef PAUSE
  :: atomic { LIVEW && wt != 0 -> PICK(Pworker, n, now.wt) }
     /* the worker may be paused here, between its look and its rename */
     d_step {
       if
       :: wt & BIT(n) -> wt = wt & ~BIT(n); cl[w] = cl[w] | BIT(n); my = n; printf("W%d claims %d\n", w, n)
       :: else -> skip
       fi; n = 0 }
     if :: my -> goto got :: else fi
  :: !LIVEW -> goto wake
#else
#ifdef MUT_INFER
  :: atomic { wt != 0 && begun >= w -> begun = (begun == w -> w + 1 : begun); PICK(Pworker, n, now.wt) }
     d_step {
       if
       :: wt & BIT(n) -> wt = wt & ~BIT(n); cl[w] = cl[w] | BIT(n)
       :: else -> skip
       fi; my = n; n = 0; printf("W%d believes it claimed %d\n", w, my) }
     goto got
#else
  :: atomic { wt != 0 && begun >= w -> begun = (begun == w -> w + 1 : begun); PICK(Pworker, my, now.wt);
       d_step { wt = wt & ~BIT(my); cl[w] = cl[w] | BIT(my); printf("W%d claims %d\n", w, my) }
       goto got }
#endif
#endif
#ifdef LOST
  :: atomic { wt != 0 && LIVEW && losts < NLOST && begun >= w -> losts++; begun = (begun == w -> w + 1 : begun); PICK(Pworker, n, now.wt);
       d_step { wt = wt & ~BIT(n); cl[w] = cl[w] | BIT(n); printf("W%d claims %d, reply lost\n", w, n); n = 0 } }
#endif
#ifdef AFTER
#ifdef MUT_AFTERVIS
  :: d_step { c_expr { AFTER_VISIBLE } && hd != 0 -> wt = wt | hd; hd = 0 }
#else
  :: d_step { c_expr { AFTER_DURABLE } && hd != 0 -> wt = wt | hd; hd = 0 }
#endif
#endif
  od;

got: /* claim 4-6: ledger, receipts of others where attempt or generation is above the first, cancelled generations */
  atomic {
#ifdef PUBLISH
    c_code { if (!now.led) uerror("PUB: a token of a batch that is not published was claimed"); }
#endif
    c_code {
      int n = Pworker->my, m = cMASK(n), g = GEN(n), u = all_of(now.jo), e = 0;
#ifndef MUT_NOSKIP
      if (cATT(n) > 1 || g > 0) {
        e = fin(u, m, g, GVEC);
#ifndef MUT_SKIPNOADOPT
        now.jo[Pworker->w] |= u & recs(m);
#endif
      }
#endif
      e |= fin(0, m, g, GVEC);
      Pworker->todo = m & ~e;
    };
    skip }

next:
  atomic { t = 0; dn = 0; kp = 0; at = ATT(my) }
#ifdef PAUSE
#ifndef MUT_NOCHECK
  if :: LIVEW -> skip :: else -> goto wake fi;
#endif
#endif
#ifdef CANCEL
  if
  :: atomic { c_expr { CAN_TODO } -> goto cancelled }
  :: else
  fi;
#endif
  if
  :: todo == 0 -> goto release
  :: d_step { todo == MASK(my) && gives < NGIVE -> gives++; n = (cl[w] & BIT(my) -> my : 0);
       if
       :: n -> cl[w] = cl[w] & ~BIT(n);
          wt = wt | BIT(n)
       :: else -> skip
       fi; printf("W%d gives back %d\n", w, my) }
     goto idle
  :: d_step { (todo & (todo - 1)) != 0 && splits < NSPLIT -> splits++;
       c_code { int h = 1 << (high(Pworker->todo) - 1), n = Pworker->my;
         Pworker->dn = cNAME(cGRP(n), cATT(n), h); Pworker->kp = cNAME(cGRP(n), cATT(n), cMASK(n) & (h - 1)); };
       todo = todo & ~MASK(dn) }
     goto split
  :: atomic { todo != 0 ->
#ifdef ANYORDER
       if :: PICK(Pworker, t, Pworker->todo) :: c_expr { (Pworker->todo == 7) } -> t = 2 fi; t = t - 1
#else
       c_code { Pworker->t = low(Pworker->todo) - 1; }
#endif
     }
  fi;

run_t:
#ifdef BOOKS
  atomic { js[w] = js[w] | REC(t, GEN(my), at) }
#ifndef MUT_STARTNOSYNC
  if :: d_step { at > 1 -> jsd[w] = js[w]; jd[w] = jo[w] } :: else fi;
#endif
#endif
  d_step {
    ex[w] = RUN(t, GEN(my), at);
    printf("W%d runs task %d attempt %d\n", w, t, at);
    c_code {
      int k, w = Pworker->w, t = Pworker->t, b = 1 << (now.ex[w] - 1);
      if (now.gs & b) uerror("P2: this attempt ran before");
      now.gs |= b;
#ifdef PAUSE
      if (now.st[w] == LIVE) {
        for (k = 0; k < cNW; k++) if (k != w && now.ex[k] && RTASK(now.ex[k]) == t && now.st[k] == LIVE)
          uerror("P2: two unfenced executions of one task");
#else
      { for (k = 0; k < cNW; k++) if (k != w && now.ex[k] && RTASK(now.ex[k]) == t)
          uerror("P2: two executions of one task at once");
        if (fin(all_of(now.jd), 1 << t, GEN(Pworker->my), GVEC)) uerror("P3: a task runs again after it ended durably");
#endif
#ifdef AFTER
        if (t == 1 && !(ENDED_D & 1)) uerror("AFTER: a held task runs before its upstream ended durably");
#endif
      }
    } }
  if
  :: d_step { jo[w] = jo[w] | REC(t, GEN(my), at); todo = todo & ~(1 << t); ex[w] = 0; printf("W%d receipt %d\n", w, t) }
     goto next
#ifdef CANCEL
  :: d_step { c_expr { CAN_T } -> ex[w] = 0 }
     goto cancelled
#endif
  :: d_step { fails < NFAIL -> fails++; ex[w] = 0; printf("W%d fails %d\n", w, t) }
  fi;
  /* a failed task: run it again in place, or let it leave with attempt + 1 */
  if
#ifdef KEEPRETRY
#ifdef MUT_KEEPNAME
  :: d_step { at < NA -> at = at + 1 }
     goto run_t
#else
  /* in place: the claim itself moves to attempt + 1 for what is unfinished; receipts of what it drops are synced first */
  :: d_step { at < NA -> n = NAME(GRP(my), at + 1, 1);
       c_code { Pworker->n = cNAME(cGRP(Pworker->my), Pworker->at + 1, hull(Pworker->todo)); } }
#ifndef MUT_SPLITNOSYNC
     d_step { jd[w] = jo[w] }
#endif
     d_step {
       if
       :: (cl[w] & BIT(my)) != 0 -> cl[w] = (cl[w] & ~BIT(my)) | BIT(n); my = n; printf("W%d retries in place: %d\n", w, n)
       :: else -> my = 0
       fi; n = 0 }
     if :: my -> goto next :: else -> goto wake fi
#endif
#endif
  :: d_step { c_code { if (Pworker->at >= cNA) uerror("BOUND: NA is too small"); };
#ifdef MUT_RETRYSAME
       dn = NAME(GRP(my), at, 1 << t);
#else
       dn = NAME(GRP(my), at + 1, 1 << t);
#endif
       todo = todo & ~(1 << t);
       c_code { int m = hull(Pworker->todo); Pworker->kp = m ? cNAME(cGRP(Pworker->my), cATT(Pworker->my), m) : 0; } }
#ifdef MUT_RETRYEARLY
     /* the retry piece leaves before the old claim's cover ends */
     d_step { wt = wt | BIT(dn) }
     goto next
#endif
  fi;

split:
#ifdef MUT_DRAFTLATE
  goto commit;
drafts:
#endif
  atomic { dr[w] = dr[w] | BIT(dn); printf("W%d drafts %d\n", w, dn) }
#ifdef MUT_DRAFTLATE
  goto moved;
#endif
commit:
#ifndef MUT_SPLITNOSYNC
  if
  :: d_step { (kp == 0 || (MASK(my) & ~MASK(kp) & ~MASK(dn)) != 0) && jd[w] != jo[w] -> jd[w] = jo[w] }
  :: d_step { !((kp == 0 || (MASK(my) & ~MASK(kp) & ~MASK(dn)) != 0) && jd[w] != jo[w]) -> skip }
  fi;
#endif
  if
  :: d_step { (cl[w] & BIT(my)) != 0 ->
       cl[w] = cl[w] & ~BIT(my); printf("W%d shrinks %d to %d\n", w, my, kp);
       if :: kp -> cl[w] = cl[w] | BIT(kp) :: else -> skip fi; skip }
#ifdef MUT_LOSTSPLIT
  /* the rename was done, its reply lost, one look-up failed, and the worker believes it */
  :: d_step { (cl[w] & BIT(my)) != 0 && losts < NLOST -> losts++;
       cl[w] = cl[w] & ~BIT(my); if :: kp -> cl[w] = cl[w] | BIT(kp) :: else -> skip fi;
       dr[w] = dr[w] & ~BIT(dn) }
     goto idle
#endif
  :: d_step { (cl[w] & BIT(my)) == 0 -> dr[w] = dr[w] & ~BIT(dn) }
     goto wake
  fi;
#ifdef MUT_DRAFTLATE
  goto drafts;
moved:
#endif
#ifdef MUT_WAKEDRAFT
  if :: LIVEW -> skip :: else -> d_step { dr[w] = dr[w] & ~BIT(dn) } goto wake fi;
#endif
  atomic {
    if
    :: (dr[w] & BIT(dn)) != 0 -> dr[w] = dr[w] & ~BIT(dn); wt = wt | BIT(dn); printf("W%d publishes %d\n", w, dn)
    :: else -> skip
    fi;
    my = kp }
  if :: my -> goto next :: else -> goto idle fi;

#ifdef CANCEL
cancelled:
  atomic {
    c_code {
      int i, g = GEN(Pworker->my), e = CANMASK(g) & Pworker->todo;
      for (i = 0; i < cNT; i++) if (e >> i & 1) {
        if (!(now.can[i] >> g & 1)) uerror("CANCEL: a generation that nobody cancelled was cancelled");
        now.jo[Pworker->w] |= 1 << (i + cNT * (Pworker->at - 1 + cNA * g)); }
      Pworker->todo &= ~e; } }
  goto next;
#endif

release:
#ifndef MUT_NOSYNC
  if :: d_step { jd[w] != jo[w] -> jd[w] = jo[w] } :: else fi;
#endif
  atomic {
    if
    :: (cl[w] & BIT(my)) != 0 -> cl[w] = cl[w] & ~BIT(my); printf("W%d releases %d\n", w, my)
    :: else -> skip
    fi; skip }
  goto idle;

wake: /* end the children, abandon, fsync, exit */
  atomic { ex[w] = 0; jd[w] = jo[w]; alive[w] = false; printf("W%d wakes fenced and leaves\n", w) }
fin:
  skip
  } unless { d_step { !alive[w] -> my = 0; todo = 0; t = 0; n = 0; dn = 0; kp = 0; at = 0 } }
}

/* a name that stood in the directory from the start of the listing to its end: no listing misses it */
#define PRESENT ((lm & cl[tg]) != 0)
#ifndef NLIST
#define NLIST 1
#endif

proctype reaper(byte r) {
  byte tg, n, v, f; int lm; /* the life, a name, void or the new name, the state met, the listing at its start */
  {
  skip;
idle:
  atomic { tg = 0; n = 0; v = 0; f = 0; lm = 0 }
end_idle:
  if
#ifdef MUT_NOREREAP
#define LEFT(k) false
#else
#define LEFT(k) (st[k] == DEAD && (cl[k] | dr[k] | fe[k]) != 0)
#endif
#define TARGET(k) ((!alive[k] && st[k] == LIVE) || st[k] == REAPING || st[k] == FENCED || LEFT(k))
  :: d_step { rbegun >= r && TARGET(0) -> tg = 0 }
#if NL > 1
  :: d_step { rbegun >= r && TARGET(1) -> tg = 1 }
#endif
#if NL > 2
  :: d_step { rbegun >= r && TARGET(2) -> tg = 2 }
#endif
#if NL > 3
  :: d_step { rbegun >= r && TARGET(3) -> tg = 3 }
#endif
#ifdef PAUSE
#ifdef FOLD
#define SUSPECT NW
#else
#define SUSPECT 0
#endif
  :: d_step { rbegun >= r && susps < NSUSP && alive[SUSPECT] && st[SUSPECT] == LIVE -> tg = SUSPECT; v = 1; susps++; printf("R%d suspects life %d\n", r, tg) }
#endif
  fi;
  /* evidence: the children of a dead worker are ended first; those of a suspected one are out of reach */
  d_step { rbegun = (rbegun == r -> r + 1 : rbegun); printf("R%d reaps life %d\n", r, tg);
#ifndef MUT_NOKILL
    if :: v == 0 && tg < NW -> ex[tg] = 0 :: else -> skip fi;
#endif
    v = 0 }
  /* start where the state stands: a fenced life is not fenced again */
  d_step { f = st[tg]; if :: f == LIVE -> st[tg] = REAPING :: else -> skip fi; skip }
#ifdef MUT_NOREREAP
  if :: d_step { f >= FENCED -> f = 0 } goto five :: d_step { f < FENCED -> f = 0 } fi;
#endif
#ifdef MUT_FENCEEARLY
  d_step { if :: st[tg] == REAPING -> st[tg] = FENCED :: else -> skip fi; skip }
#endif
two:
#ifdef STALE
  atomic { lm = cl[tg]; f = 0 }
  do
  :: atomic { PRESENT -> PICK(Preaper, n, now.cl[Preaper->tg] & Preaper->lm) }
     d_step { if :: (cl[tg] & BIT(n)) != 0 -> cl[tg] = cl[tg] & ~BIT(n); fe[tg] = fe[tg] | BIT(n) :: else -> skip fi; n = 0 }
     d_step { lm = cl[tg]; f = 0 }
  /* the listing shows nothing that stood in it from start to end */
  :: d_step { !PRESENT && f + 1 < NLIST -> f++; lm = cl[tg] }
  :: d_step { !PRESENT && f + 1 >= NLIST -> lm = 0; f = 0 } break
  od;
#else
  do
  :: atomic { cl[tg] != 0 -> PICK(Preaper, n, now.cl[Preaper->tg]) }
     d_step { if :: (cl[tg] & BIT(n)) != 0 -> cl[tg] = cl[tg] & ~BIT(n); fe[tg] = fe[tg] | BIT(n); printf("R%d fences %d\n", r, n) :: else -> skip fi; n = 0 }
#ifdef SPARE_ONELIST
     break
#endif
  :: cl[tg] == 0 -> break
  od;
#endif
#ifdef FOLD
#ifndef MUT_FOLDLOOK
  /* close the merged batch's name: either it is committed, or it never will be */
  if
  :: d_step { tg == NW && fold == 0 -> fold = 2; printf("R%d closes the fold\n", r) }
  :: d_step { !(tg == NW && fold == 0) -> skip }
  fi;
#endif
#endif
three:
  do
  :: atomic { dr[tg] != 0 -> PICK(Preaper, n, now.dr[Preaper->tg]) }
     /* one listing of the fenced names, then the state: once it is fenced, every draft still there is void */
     atomic {
#ifdef MUT_NOVOID
       v = 0;
#else
       c_code { Preaper->v = is_void(Preaper->n, now.fe[Preaper->tg]); };
#endif
#ifdef FOLD
       v = (tg == NW -> (fold != 1) : v)
#else
       skip
#endif
     }
#ifndef MUT_SLOWREAPER
#ifdef PAUSE
     d_step { v = (st[tg] == REAPING -> v : 1) }
#endif
#endif
     d_step {
       if
       :: (dr[tg] & BIT(n)) != 0 ->
          dr[tg] = dr[tg] & ~BIT(n);
          printf("R%d takes draft %d void %d\n", r, n, v);
          if
          :: v -> skip
          :: else ->
             fe[tg] = fe[tg] | BIT(n)
          fi
       :: else -> skip
       fi; n = 0; v = 0 }
  :: dr[tg] == 0 -> break
  od;
  atomic { if :: st[tg] == REAPING -> st[tg] = FENCED :: else -> skip fi; skip }
five:
  do
  :: atomic { fe[tg] != 0 -> PICK(Preaper, n, now.fe[Preaper->tg]) }
     d_step {
       c_code {
         int n = Preaper->n, m = cMASK(n), u = now.jo[Preaper->tg], e;
#ifdef MUT_NOREAD
         u = 0;
#endif
         e = fin(u, m, GEN(n), GVEC);
#ifndef MUT_NOADOPTED
         now.jo[cNL + Preaper->r] |= u & recs(m);
#endif
#ifdef BOOKS
         now.js[cNL + Preaper->r] |= now.js[Preaper->tg] & recs(m);
#endif
#ifdef FOLD
#ifndef MUT_FOLDREPUB
         if (Preaper->tg == cNW && now.fold == 1 && (now.folded & cBIT(n))) e = m;
#endif
#endif
         m = hull(m & ~e);
         if (m && cATT(n) >= cNA) uerror("BOUND: NA is too small");
#ifdef MUT_NOBUMP
         Preaper->v = m ? cNAME(cGRP(n), cATT(n), m) : 0;
#else
         Preaper->v = m ? cNAME(cGRP(n), cATT(n) + 1, m) : 0;
#endif
       } }
#ifndef MUT_REAPNOSYNC
     d_step { jd[NL + r] = jo[NL + r];
#ifdef BOOKS
       jsd[NL + r] = js[NL + r];
#endif
     }
#endif
     d_step {
       if
       :: (fe[tg] & BIT(n)) != 0 ->
          fe[tg] = fe[tg] & ~BIT(n); printf("R%d moves %d to %d\n", r, n, v);
          if :: v -> wt = wt | BIT(v) :: else -> skip fi
       :: else ->
#ifdef MUT_REAPCREATE
          if :: v -> wt = wt | BIT(v) :: else -> skip fi
#else
          skip
#endif
       fi; n = 0; v = 0 }
  :: fe[tg] == 0 -> break
  od;
  atomic {
    st[tg] = DEAD;
#ifdef MUT_NOREREAP
    cl[tg] = 0; dr[tg] = 0
#else
    skip
#endif
    }
  goto idle
  } unless { d_step { !ral[r] -> tg = 0; n = 0; v = 0; f = 0; lm = 0 } }
}

#ifdef BOOKS
#define CUTS(j) jo[j] = jd[j]; js[j] = jsd[j]
#define TAIL(j) (jo[j] != jd[j] || js[j] != jsd[j])
#else
#define CUTS(j) jo[j] = jd[j]
#define TAIL(j) (jo[j] != jd[j])
#endif
#define BUSY(k) ((cl[k] | dr[k]) != 0)

/* Deaths.  How many will happen is chosen first, so that a state in which nobody can move is seen with no death left. */
proctype nature(byte nc; byte np; byte nrc) {
  byte k;
end_n:
  do
  :: atomic { crashes < nc ->
       if
#if NW > 1
       :: alive[0] && BUSY(0) -> k = 0
#endif
#if !defined(PAUSE) && !defined(FOLD)
#if NW > 1
       :: alive[1] && BUSY(1) -> k = 1
#endif
#if NW > 2
       :: alive[2] && BUSY(2) -> k = 2
#endif
#endif
#ifdef FOLD
       :: alive[NW] && BUSY(NW) -> k = NW
#endif
       fi;
       d_step { alive[k] = false; crashes++; printf("life %d crashes\n", k); k = 0 } }
  /* the host of a life that is gone loses power: what was written and not synced is gone */
  :: atomic { powers < np ->
       if
       :: !alive[0] && TAIL(0) -> k = 0
#if NL > 1
       :: !alive[1] && TAIL(1) -> k = 1
#endif
#if NL > 2
       :: !alive[2] && TAIL(2) -> k = 2
#endif
       fi;
       d_step { powers++; CUTS(k); if :: k < NW -> ex[k] = 0 :: else -> skip fi; printf("host of life %d loses power\n", k); k = 0 } }
  :: atomic { rcs < nrc ->
       if
       :: ral[0] && rbegun > 0 -> k = 0
#if NR > 1
       :: ral[1] && rbegun > 1 -> k = 1
#endif
#if NR > 2
       :: ral[2] && rbegun > 2 -> k = 2
#endif
       fi;
       d_step { ral[k] = false; rcs++; printf("R%d dies\n", k) }
       if :: d_step { powers < np && TAIL(NL + k) -> powers++; CUTS(NL + k) } :: skip fi;
       k = 0 }
  od
}

#ifdef PUBLISH
/* Publishers of the same names and content; each may stop for good after any step, all but the last. */
#define STOP :: d_step { pubs < NP - 1 -> pubs++; printf("publisher %d dies\n", p) } goto fin
proctype publisher(byte p) {
  if :: led -> goto finish :: led == 0 -> skip STOP fi;
#ifndef MUT_PUBLATE
  atomic { pdr[p] = true; printf("P%d drafts\n", p) }
#endif
#ifdef MUT_PUBTOKEN
  if :: skip STOP fi;
  atomic { if :: pdr[p] -> pdr[p] = false; wt = wt | BIT(NAME(0, 1, ALL)) :: else -> skip fi; skip }
#endif
  if :: skip STOP fi;
commit:
  if
  :: d_step { led == 0 -> led = p + 1; printf("P%d commits\n", p) }
  :: d_step { led != 0 ->
#ifdef MUT_PUBBOTH
       wt = wt | BIT(NAME(0, 1, ALL));
#endif
       pdr[p] = false }
  fi;
  if :: skip STOP fi;
#ifdef MUT_PUBLATE
  atomic { if :: led == p + 1 -> pdr[p] = true :: else -> skip fi; skip }
#endif
finish: /* step 5, for my publication or for one that I found */
#ifdef MUT_PUBNOFINISH
  if :: led != p + 1 -> goto fin :: else fi;
#endif
  atomic {
    if
#ifdef MUT_PUBCREATE
    :: led -> pdr[led - 1] = false; wt = wt | BIT(NAME(0, 1, ALL))
#else
    :: led && pdr[led - 1] -> pdr[led - 1] = false; wt = wt | BIT(NAME(0, 1, ALL)); printf("P%d renames the draft of P%d\n", p, led - 1)
#endif
    :: else -> skip
    fi; skip }
fin:
  skip
}
#endif

#ifdef RETRY
/* A person asks for task 0 again, once its end is durable; may stop after any step.  `check` finishes committed requests. */
proctype person(byte q) {
  if
#ifdef MUT_RETRYVIS
  :: d_step { c_expr { RETRY_VISIBLE } && gen[0] == 0 -> skip }
#else
  :: d_step { c_expr { RETRY_DURABLE } && gen[0] == 0 -> skip }
#endif
  fi;
#ifdef MUT_RETRYNOGEN
  d_step { wt = wt | BIT(NAME(0, 1, 1)) }
#else
#ifdef MUT_RETRYLATE
  goto link;
#endif
  d_step { qd = qd | (1 << q) }
  if :: skip :: goto fin fi;
link:
  if
  :: d_step { gen[0] == 0 -> gen[0] = 1; rq = q; printf("Q%d commits the retry of task 0\n", q) }
  :: d_step { gen[0] != 0 -> qd = qd & ~(1 << q) } goto fin
  fi;
#ifdef MUT_RETRYLATE
  if :: skip :: goto fin fi;
  d_step { qd = qd | (1 << q) }
#endif
#endif
fin:
  skip
}
/* step 3 of a retry, by the person or by a later check */
proctype finisher() {
end_f:
  if :: d_step { gen[0] == 1 && (qd >> rq) & 1 -> qd = qd & ~(1 << rq); wt = wt | BIT(NAME(1, 1, 1)); printf("the retry of task 0 waits\n") } fi; skip
}
#endif

#ifdef CANCEL
/* A person cancels task 0 in generation 0, at any time. */
proctype canceller() {
  d_step { can[0] = 1; printf("task 0 generation 0 is cancelled\n") }
}
#endif

#ifdef FOLD
/* The folder: a life with the index NW. */
#define CF cl[NW]
#define P1NAME(t) NAME(0, 1, 1 << (t))
proctype folder() {
  byte n, m, t; int got;
  {
  do /* claim small batches, as any worker would */
#ifdef PAUSE
  :: alive[NW] && st[NW] != LIVE -> goto fin
#endif
  :: atomic { st[NW] == LIVE && (wt & ((1 << (NM * NA)) - 1)) != 0 -> PICK(Pfolder, n, now.wt & small()) }
     d_step { if :: wt & BIT(n) -> wt = wt & ~BIT(n); CF = CF | BIT(n); got = got | BIT(n); printf("F claims %d\n", n) :: else -> skip fi; n = 0 }
  :: got != 0 -> break
  :: goto fin
  od;
  atomic {
    c_code {
      int i, m = 0, a = 1;
      for (i = 1; i <= cNAMES; i++) if (Pfolder->got >> (i - 1) & 1) { m |= cMASK(i); if (cATT(i) > a) a = cATT(i); }
      Pfolder->m = cNAME(1, a, m); } }
  if :: c_expr { FOLD_HULL } -> skip :: else -> goto back fi;
#ifdef MUT_FOLDUNLINK
  d_step { CF = CF & ~got }
#endif
#ifndef MUT_FOLDLATE
  d_step { dr[NW] = dr[NW] | BIT(m); printf("F drafts %d\n", m) }
#endif
  if
  :: d_step { fold == 0 -> fold = 1; folded = got; printf("F commits\n") }
  :: d_step { fold != 0 -> dr[NW] = dr[NW] & ~BIT(m) } goto fin
  fi;
#ifdef MUT_FOLDLATE
  d_step { dr[NW] = dr[NW] | BIT(m) }
#endif
  d_step { if :: dr[NW] & BIT(m) -> dr[NW] = dr[NW] & ~BIT(m); wt = wt | BIT(m); printf("F publishes %d\n", m) :: else -> skip fi; skip }
back:
  do
  :: atomic { got != 0 -> PICK(Pfolder, n, Pfolder->got) }
     d_step { got = got & ~BIT(n);
       if :: CF & BIT(n) -> CF = CF & ~BIT(n); if :: fold == 1 -> skip :: else -> wt = wt | BIT(n) fi :: else -> skip fi; n = 0 }
  :: got == 0 -> break
  od;
fin:
  atomic { alive[NW] = false }
  } unless { d_step { !alive[NW] -> n = 0; m = 0; t = 0; got = 0 } }
}
#endif

#ifdef CHECK
/* check --repair, NC at once; all but one may stop for good after any step.  One token may be removed by hand. */
#define CSTOP :: d_step { cstops < NC - 1 -> cstops++; t = 0; n = 0; l0 = 0; l1 = 0; l2 = 0; l3 = 0; l4 = 0; printf("C%d dies\n", i) } goto fin
proctype check(byte i) {
  byte t, n; int l0, l1, l2, l3, l4;
idle:
  skip;
end_idle:
  do
  :: atomic { rp == 0 && c_expr { UNENDED_W } -> PICK(Pcheck, t, UNENDED_W); t = t - 1; l0 = wt; l1 = cl[0]; l2 = fe[0]; l3 = cl[1]; l4 = fe[1] }
     /* the end of the listing: it may miss what moved meanwhile */
     if
     :: d_step { c_expr { SEEN } -> l0 = 0; l1 = 0; l2 = 0; l3 = 0; l4 = 0; t = 0 } goto tired
     :: d_step { c_expr { NOT_SEEN } -> l0 = 0; l1 = 0; l2 = 0; l3 = 0; l4 = 0 }
     fi;
#ifndef MUT_CHECKONE
     /* look-up of every form, and no life that is being reaped */
     if :: c_expr { STILL_UNCOVERED } -> skip :: else -> t = 0; goto tired fi;
#endif
     d_step {
       c_code { int a = 0, b, k, m = hull(1 << Pcheck->t | UNCOVERED);
         for (k = 0; k < cNT; k++) if (m >> k & 1) {
           b = highest(k, GVEC, now.wt, HELD, now.cl, now.dr, now.fe, all_of(now.jo) | CHECK_STARTED);
           if (b > a) a = b; }
         if (a >= cNA) uerror("BOUND: NA is too small");
#ifdef MUT_CHECKSAME
         a = a ? a - 1 : 0;
#endif
         Pcheck->n = cNAME(0, a + 1, m); };
       cdr[i] = n; t = 0 }
     if :: skip CSTOP fi;
#ifdef MUT_CHECKNOLINK
     d_step { cdr[i] = 0; wt = wt | BIT(n); printf("C%d repairs with %d\n", i, n); n = 0 }
#else
     if
     :: d_step { rp == 0 -> rp = i + 1; printf("C%d commits repair %d\n", i, n); n = 0 }
     :: d_step { rp != 0 -> cdr[i] = 0; n = 0 }
     fi;
     if :: skip CSTOP fi
#endif
  :: d_step { rp != 0 && cdr[rp - 1] != 0 -> wt = wt | BIT(cdr[rp - 1]); printf("C%d finishes repair %d\n", i, cdr[rp - 1]); cdr[rp - 1] = 0 }
  od;
tired: /* a check that found nothing looks again only a bounded number of times while all is well */
  if
  :: d_step { looks < NLOOK -> looks++ } goto idle
  :: d_step { looks >= NLOOK -> skip }
  fi;
end_t:
  do
  :: atomic { rp == 0 && c_expr { UNCOVERED } -> goto idle }
  :: d_step { rp != 0 && cdr[rp - 1] != 0 -> wt = wt | BIT(cdr[rp - 1]); cdr[rp - 1] = 0 }
  od;
fin:
  skip
}
/* A person removes a waiting token. */
proctype vandal() {
  byte n;
end_v:
  atomic { wt != 0 -> PICK(Pvandal, n, now.wt); d_step { wt = wt & ~BIT(n); removed = 1; printf("%d is removed by hand\n", n); n = 0 } }
}
#endif

c_decl {
/* publication or a committed retry still in its draft counts as cover */
#ifdef PUBLISH
\#define PUBLISHED (now.led != 0)
\#define OTHER_T(t) 1
\#define OTHER_COVER(t) (now.led && now.pdr[now.led - 1])
#else
\#define OTHER_T(t) ((t) == 0)
\#define PUBLISHED 1
#ifdef RETRY
\#define OTHER_COVER(t) ((t) == 0 && now.gen[0] == 1 && (now.qd >> now.rq & 1))
#elif defined(CHECK)
\#define OTHER_COVER(t) (now.rp && now.cdr[now.rp - 1] && (cMASK(now.cdr[now.rp - 1]) >> (t) & 1))
#else
\#define OTHER_COVER(t) 0
#endif
#endif
\#define OTHER0 OTHER_COVER(0)
\#define BAD_I2 (PUBLISHED && bad(0, ENDED_D, OTHER0, GVEC, GONE, now.wt, HELD, now.cl, now.dr, now.fe, now.st))
\#define BAD_I3 bad(1, ENDED_D, OTHER0, GVEC, GONE, now.wt, HELD, now.cl, now.dr, now.fe, now.st)
static int bad(int twice, int e, int other, unsigned char *gv, int gone, int wt, int hd, int *cl, int *dr, int *fe, unsigned char *st) {
  int t, n;
  for (t = 0; t < cNT; t++) if (!(e >> t & 1)) {
    n = (OTHER_T(t) ? other : 0) + covers(t, gv, gone, wt, hd, cl, dr, fe, st, !twice);
    if (twice ? n > 1 : n == 0) return 1; }
  return 0; }
#ifdef BOOKS
\#define LEFTOVER if (now.gs & ~((1 << cNT) - 1) & ~(all_of(now.js) | all_of(now.jo))) uerror("BOOKS: an attempt above the first ran and is in no journal");
#else
\#define LEFTOVER
#endif
\#define UNENDED (ENDED_D != (1 << cNT) - 1)
}

/* The invariants, in every state, and the end: nobody can move. */
proctype monitor() {
end_m:
  do
#ifndef NOINV
#ifndef CHECK
  :: c_expr { BAD_I2 } -> c_code { uerror("I2/I5: a task is neither covered nor durably ended"); }; break
#endif
  :: c_expr { BAD_I3 } -> c_code { uerror("I3: two names of different owners cover one task"); }; break
#endif
  :: timeout -> c_code { if (UNENDED) uerror("P1: nobody can move and a task has not ended");
       LEFTOVER }; break
  od
}

init {
  byte nc, np, nrc;
  atomic {
#ifdef PUBLISH
    skip;
#else
#ifdef FOLD
    wt = 0; c_code { int t; for (t = 0; t < cNT; t++) now.wt |= cBIT(cNAME(0, 1, 1 << t)); };
#else
#ifdef AFTER
    wt = BIT(NAME(0, 1, 1)); hd = BIT(NAME(0, 1, ALL & ~1));
#else
    wt = BIT(NAME(0, 1, ALL));
#endif
#endif
#endif
    do :: nc < NL -> alive[nc] = true; nc++ :: nc == NL -> break od; nc = 0;
    do :: nrc < NR -> ral[nrc] = true; nrc++ :: nrc == NR -> break od; nrc = 0;
    do :: nc < NCRASH -> nc++ :: break od;
    do :: np < NPOWER -> np++ :: break od;
    do :: nrc < NRC -> nrc++ :: break od;
#if NSUSP > 0
    do :: susps < NSUSP -> susps++ :: break od; /* suspicions that will not happen */
#endif
    run monitor();
    run worker(0);
#if NW > 1
    run worker(1);
#endif
#if NW > 2
    run worker(2);
#endif
    run reaper(0);
#if NR > 1
    run reaper(1);
#endif
#if NR > 2
    run reaper(2);
#endif
#ifdef PUBLISH
    run publisher(0);
    run publisher(1);
#endif
#ifdef RETRY
    run person(0);
#if NQ > 1
    run person(1);
#endif
    run finisher();
#endif
#ifdef CANCEL
    run canceller();
#endif
#ifdef FOLD
    run folder();
#endif
#ifdef CHECK
    if :: run vandal() :: skip fi;
    run check(0);
#if NC > 1
    run check(1);
#endif
#endif
    if :: nc + np + nrc > 0 -> run nature(nc, np, nrc) :: else fi;
    nc = 0; np = 0; nrc = 0;
  }
}
