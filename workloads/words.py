"""Common English words, the commonest first.

Each is one token after a space in the vocabularies of GPT-2, GPT-4 (cl100k), GPT-4o (o200k), Qwen, Mistral
(SentencePiece) and Mistral Nemo (Tekken), checked once; `tokens.calibrate` asks each server again.
"""

_TEXT = """
the of and to in for is on that by this with you it not or be are from at as your all have new more an was we
will home can us about if page my has search free but our one other do no time they site up may what which
their news out use any there see only so his when contact here business who web also now help get view online
first been would how were services some these click its like service than find price date back top people list
name just over state year day into email two health world next used go work last most products music buy data
make them should product system post her city add policy number such please available copyright support
message after best software then good video well where info rights public books high school through each links
she review years order very privacy book items company read group need many said does set under general
research mail full map reviews program life know games way days part could great united hotel real item must
store travel comments made report off member details line terms before right because local those using results
office education national car design take posted internet address community within states area want phone
shipping reserved subject between forum family long based code show even check special prices website index
being much sign file link open today south case project same pages version section own found sports house
related security both county photo game members power while care network down computer systems three total
place end following download him without per access think north resources current posts big media law control
water history pictures size art personal since including guide shop directory board location change text small
rating rate during return students shopping account times sites level digital profile previous form events
love old main call hours image title another why shall property class still money quality every listing
content country private little visit save tools low reply customer compare movies include college value
article man card jobs provide food source author different press learn sale around print course job process
room stock training too point join science advanced west sales look left team estate box select windows photos
thread week category note live large gallery table register however market library really action start series
model features air industry plan human provided required second cost movie march better say questions going
medical test friend come server study cart staff articles feedback again play looking issues never complete
street topic comment financial things working against standard person below mobile less got blog party payment
equipment login student let programs offers above recent park stores side act red give memory social quote
language story sell options rates create key young important field few east paper single age club example
password latest something road gift question changes night hard four status issue range building seller court
always result audio light write offer blue groups easy given files event release analysis request making
picture needs possible might month major star areas future space committee hand sun cards meeting become
interest keep enter share similar garden schools million added reference companies listed learning energy run
delivery net popular term film stories put computers journal reports welcome central images notice original
head radio until cell council away includes track archive once others agreement format least society months
safety friends sure trade edition cars messages marketing tell further updated able having provides fun
already green studies close common drive specific several gold living called short arts lot ask display
limited powered solutions means director daily beach past natural whether due five upon period planning
database says official weather land average done technical window region island record direct records district
calendar costs style
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
